"""The private folder of a run: `.coldctl-<process id>.tmp` in the target, on the same filesystem.

    new/<number>   files in the making
    old/<name>     files that were set aside, each under the name that it had in the target
    commit.json    there while a commit is under way: what it takes to undo it

A commit writes commit.json, sets old files aside, gives the new ones their names, and removes commit.json. That
last step is the point of no return: while the file is there a commit is undone, by the same run or, after a kill, by
the next one; without it what the folder holds, old files included, is of no use and goes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from coldctl.errors import RefusedError
from coldctl.loader.atomic.names import give_name, in_parallel, sync
from coldctl.loader.regular import opened, read_at

_TEMPORARY = re.compile(r"\.coldctl-[0-9]+(-[0-9]+)?\.tmp", re.ASCII)
_NEW, _OLD, _JOURNAL, _UNFINISHED_JOURNAL = "new", "old", "commit.json", "commit.part"
_MOST_JOURNAL_BYTES = 256 << 20
_OURS = {_NEW, _OLD, _JOURNAL, _UNFINISHED_JOURNAL}

Identity = tuple[int, int, int]
"""Inode, size and mtime in ns: enough to tell a file of ours from one that somebody put in its place."""


class Journal(NamedTuple):
    """What a commit is about to do: give `given` their names after setting `replaced` aside, in these orders.

    `folders` were made for it, outermost first.
    """

    given: list[tuple[str, Identity]]
    replaced: list[str]
    folders: list[str]


def is_temporary(name: str) -> bool:
    """Whether coldctl names its own temporary files and folders so."""
    return _TEMPORARY.fullmatch(name) is not None


def is_leftover(target: str, name: str) -> bool:
    """Whether `name` in `target` is of a run of coldctl and holds nothing that is needed."""
    return is_temporary(name) and not os.path.lexists(os.path.join(target, name, _JOURNAL))


def leads_out(folder: str, name: str) -> str | None:
    """Where the folder of `name` really is, when that is not in `folder`."""
    home = os.path.realpath(folder)
    found = os.path.realpath(os.path.dirname(os.path.join(folder, name)))
    return None if os.path.commonpath([home, found]) == home else found


def identity(path: str) -> Identity:
    status = os.lstat(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


class PrivateFolder:
    """A private folder in `target`, of this run or of one that was killed."""

    def __init__(self, target: str, path: str) -> None:
        self._target = target
        self.path = path
        self.old = os.path.join(path, _OLD)
        self._journal_path = os.path.join(path, _JOURNAL)
        self._journal: Journal | None = None

    @classmethod
    def make(cls, target: str) -> PrivateFolder:
        """A new one. Numbers follow when another run's is there: process ids repeat, in containers above all."""
        for number in itertools.count():
            suffix = f"-{number}" if number else ""
            path = os.path.join(target, f".coldctl-{os.getpid()}{suffix}.tmp")
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                break
        made = cls(target, path)
        try:
            os.mkdir(os.path.join(path, _NEW))
        except OSError:
            made.remove()
            raise
        return made

    def path_of_new(self, number: int) -> str:
        return os.path.join(self.path, _NEW, str(number))

    def begin(self, journal: Journal) -> None:
        """Write down, durably, what the commit that begins is about to do."""
        os.mkdir(self.old)
        unfinished = os.path.join(self.path, _UNFINISHED_JOURNAL)
        with open(unfinished, "w", encoding="ascii") as file:
            json.dump(journal, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, self._journal_path)
        self._journal = journal
        for folder in (self.path, self._target):
            sync(folder)

    def set_aside(self, name: str) -> None:
        """Move `name` of the target here, if it is there."""
        aside = os.path.join(self.old, name)
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(self._target, name), aside)

    def end(self) -> None:
        """The point of no return: what was set aside is not needed any more."""
        os.unlink(self._journal_path)
        self._journal = None

    def undo(self) -> list[str]:
        """Take the commit that is under way back, if there is one: new names away, then old files in their places.

        What makes a set usable was set aside first and is put back last. Returns the names for which that failed;
        then the old files still missing stay in `old`, and the journal stays for the next run.
        """
        journal = self._journal
        if journal is None:
            return []
        left = self._take_away(journal.given)
        left += [name for name in self._put_back(journal.replaced) if name not in left]
        if not left:
            remove_folders(os.path.join(self._target, folder) for folder in journal.folders)
            with contextlib.suppress(OSError):
                self.end()
        return left

    def remove(self) -> bool:
        """Remove all that is in here; False when some of it cannot be."""
        for folder, subfolders, names in os.walk(self.path, topdown=False):
            paths = [os.path.join(folder, name) for name in (*names, *subfolders)]
            in_parallel(_remove, paths)
        _remove(self.path)
        return not os.path.lexists(self.path)

    def remove_after_commit(self) -> bool:
        """`remove`, once it is sure that a crash does not bring the journal back without the old files."""
        with contextlib.suppress(OSError):
            sync(self.path)
        return self.remove()

    def read(self) -> bool:
        """Learn what a killed run was about. False when this is not such a run's folder, or cannot be read.

        Whoever may write to the target could have put a folder of that name there. So links, other users' folders and
        names that lead anywhere else are not acted on.
        """
        try:
            if not set(os.listdir(self.path)) <= _OURS or not self._is_real():
                return False
            self._journal = self._read_journal()
        except (OSError, ValueError):
            return False
        return True

    def _is_real(self) -> bool:
        """Whether all folders are folders of this user (or of the target's owner) on the target's filesystem."""
        target = os.stat(self._target)
        for path in (self.path, os.path.join(self.path, _NEW), self.old):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(status.st_mode) or status.st_dev != target.st_dev:
                return False
            if status.st_uid not in (os.geteuid(), target.st_uid):
                return False
        return True

    def _take_away(self, given: Sequence[tuple[str, Identity]]) -> list[str]:
        """The names that could not be taken away. The last one goes first, and alone: it makes the set usable."""
        left: list[str] = []

        def attempt(one: tuple[str, Identity]) -> None:
            path = os.path.join(self._target, one[0])
            try:
                if identity(path) == one[1]:
                    os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(one[0])

        for last in given[-1:]:
            attempt(last)
        in_parallel(attempt, given[:-1])
        return left

    def _put_back(self, replaced: Sequence[str]) -> list[str]:
        """The names that could not be put back. After the first, the rest waits too: it may make a set usable."""
        for name in reversed(replaced):
            aside, place = os.path.join(self.old, name), os.path.join(self._target, name)
            try:
                if _are_same(aside, place):  # a kill came between link and unlink
                    os.unlink(aside)
                else:
                    give_name(aside, place)
            except FileNotFoundError:  # it was not set aside
                continue
            except OSError:
                break
        return [name for name in replaced if self._may_be_aside(name)]

    def _may_be_aside(self, name: str) -> bool:
        try:
            os.lstat(os.path.join(self.old, name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def _read_journal(self) -> Journal | None:
        """Raises ValueError for one that coldctl did not write."""
        try:
            with opened(self._journal_path) as (descriptor, status):
                if status.st_size > _MOST_JOURNAL_BYTES:
                    raise ValueError(self._journal_path)
                raw = read_at(descriptor, 0, status.st_size)
        except FileNotFoundError:
            return None
        try:
            document = json.loads(raw)
        except RecursionError as error:
            raise ValueError(self._journal_path) from error
        journal = msgspec.convert(document, Journal)  # its ValidationError is a ValueError
        names = [*(name for name, _ in journal.given), *journal.replaced, *journal.folders]
        inside = all(_stays_inside(self._target, name) for name in names)
        if not inside or not all(_stays_inside(self.old, name) for name in journal.replaced):
            raise ValueError(self._journal_path)
        return journal


def sweep(target: str) -> list[str]:
    """Undo and remove what killed runs left in `target`; the names of what looks like it and cannot be removed.

    Raises RefusedError when old files that such a run had set aside cannot be put back.
    """
    with os.scandir(target) as entries:
        found = sorted((entry for entry in entries if is_temporary(entry.name)), key=lambda entry: entry.name)
    return [entry.name for entry in found if not _swept(target, entry)]


def _swept(target: str, entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False):
        with contextlib.suppress(OSError):
            os.unlink(entry.path)
        return not os.path.lexists(entry.path)
    private = PrivateFolder(target, entry.path)
    if not entry.is_dir(follow_symlinks=False) or not private.read():
        return False
    if left := private.undo():
        raise RefusedError(
            f"what a killed run did to {', '.join(left)} in {target} cannot be undone",
            hint=f"make the names free that {private.old} has, or move its files where they belong, and run again",
        )
    return private.remove()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)


def remove_folders(made: Iterable[str]) -> None:
    """Remove folders, given outermost first, that are empty again."""
    for folder in reversed(list(made)):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _stays_inside(folder: str, name: str) -> bool:
    if "\0" in name or {"", ".", ".."} & set(name.split("/")):
        return False
    os.fsencode(name)  # half of a surrogate pair is a UnicodeEncodeError, which is a ValueError
    return leads_out(folder, name) is None


def _are_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False
