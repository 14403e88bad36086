"""A target folder while files are made for it, and the commit that gives all of them their names, or none."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from coldctl.errors import EnvironmentLacksError, RefusedError, from_os_error
from coldctl.events import NULL, Events
from coldctl.loader.atomic.names import give_name, sync_all
from coldctl.loader.atomic.private import Journal, PrivateFolder, identity, leads_out, remove_folders, sweep

_live: set[Staging] = set()


def remove_temporaries() -> None:
    """Take back every staging that is under way: the last act before a forced exit."""
    for staging in tuple(_live):
        staging.abandon()


class Staging:
    """A target folder while files are made for it. Use as a context manager; without `commit` nothing appears.

    `unswept` names what a killed run left there (or what only looks so) and cannot be removed.

    Raises RefusedError when another process is writing to the folder or old files that a killed run had set aside
    cannot be put back, and what `from_os_error` makes of a folder that cannot be made or written.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.unswept: list[str] = []
        self._made_folders: list[str] = []
        self._inside: set[str] = set()
        self._temporaries: dict[str, str] = {}
        self._numbers = itertools.count()
        self._private: PrivateFolder | None = None
        self._turn = threading.Lock()
        self._over = False
        self._lock_fd = -1

    def __enter__(self) -> Self:
        try:
            self._made_folders += _make_folders(self.folder)
            self._lock_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _live.add(self)
            if self._lock():
                self.unswept = sweep(self.folder)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            if isinstance(error, OSError):
                raise from_os_error(error, "write to", self.folder) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        _live.discard(self)

    def create(self, name: str) -> int:
        """A new, empty, writable file that `commit` will call `name` (relative to the folder): its descriptor.

        The caller closes it. The mode follows the umask, as that of any file a user makes. Raises RefusedError when
        a linked folder would make the name a file elsewhere.
        """
        self._check_inside(name)
        with self._our_turn():
            if self._private is None:
                self._private = PrivateFolder.make(self.folder)
            temporary = self._private.path_of_new(next(self._numbers))
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._temporaries[name] = temporary
        return descriptor

    def put(self, name: str, data: bytes) -> None:
        """A small file in one piece."""
        with open(self.create(name), "wb") as file:
            file.write(data)

    def path(self, name: str) -> str:
        """Where the bytes of `name` are until `commit`."""
        return self._temporaries[name]

    def commit(self, names: Sequence[str], *, replace: Sequence[str], events: Events = NULL) -> None:
        """Give the files made here their names, in the order of `names`, after setting those in `replace` aside.

        All files are synced before the first name changes, the folders after the last; only then the old files are
        removed. An error, a stop or (by the next run) a kill before that point brings exactly the old state back. A
        file that stands under a new name and is not in `replace` is never written over: RefusedError. Raises
        EnvironmentLacksError, with the names, when the old state cannot be brought back.

        What stands under a name is old, new or, for a moment, absent; never torn, and never a mixture that loads.
        """
        try:
            self._commit(names, replace, events)
        except BaseException as error:
            if left := self.abandon():
                assert self._private is not None
                raise EnvironmentLacksError(
                    f"{error}; and what was done to {', '.join(left)} in {self.folder} could not be undone",
                    hint=f"old files are in {self._private.old}: the next repack into that folder puts them back",
                ) from error
            raise
        self._remove_old()

    def abandon(self) -> list[str]:
        """Take back what was not committed, remove the temporaries, and refuse to make new ones. May be called from
        any thread. Returns the names whose old state could not be brought back."""
        with self._turn:
            if self._over:
                return []
            self._over = True
            if self._private is not None:
                if left := self._private.undo():
                    return left
                self._private.remove()
            remove_folders(self._made_folders)
            return []

    @contextmanager
    def _our_turn(self) -> Iterator[None]:
        """Nothing is made or renamed while, or after, another thread takes all back."""
        with self._turn:
            if self._over:
                raise RefusedError(f"what was written to {self.folder} has been taken back")
            yield

    def _commit(self, names: Sequence[str], replace: Sequence[str], events: Events) -> None:
        sync_all([self._temporaries[name] for name in names], self.folder, events)
        folders = sorted({os.path.dirname(name) for name in names})
        made = self._make_subfolders(folders)
        with self._our_turn():
            self._begin(names, replace, made)
        for name in replace:
            events.raise_if_stopped()
            self._set_aside(name)
        for name in names:
            events.raise_if_stopped()
            self._give(name)
        changed = {self.folder, *(os.path.join(self.folder, folder) for folder in folders if folder)}
        sync_all(sorted(changed | {os.path.dirname(path) for path in self._made_folders}), self.folder, events)
        events.raise_if_stopped()
        with self._our_turn():
            if self._private is not None:
                self._private.end()
            self._made_folders.clear()

    def _begin(self, names: Sequence[str], replace: Sequence[str], made: list[str]) -> None:
        if self._private is None:
            self._private = PrivateFolder.make(self.folder)
        given = [(name, identity(self._temporaries[name])) for name in names]
        self._private.begin(Journal(given, list(replace), [os.path.relpath(path, self.folder) for path in made]))

    def _set_aside(self, name: str) -> None:
        with self._our_turn():
            assert self._private is not None
            try:
                self._private.set_aside(name)
            except OSError as error:
                raise from_os_error(error, "replace", os.path.join(self.folder, name)) from error

    def _give(self, name: str) -> None:
        path = os.path.join(self.folder, name)
        with self._our_turn():
            try:
                give_name(self._temporaries[name], path)
            except FileExistsError as error:
                raise RefusedError(
                    f"{name} appeared in {self.folder} meanwhile", hint="move it away, and run again"
                ) from error
            except OSError as error:
                raise from_os_error(error, "write", path) from error

    def _remove_old(self) -> None:
        with self._turn:
            self._over = True
            if self._private is not None and not self._private.remove_after_commit():
                self.unswept.append(os.path.basename(self._private.path))

    def _make_subfolders(self, folders: Sequence[str]) -> list[str]:
        made: list[str] = []
        for folder in folders:
            with self._our_turn():
                new = _make_folders(os.path.join(self.folder, folder))
                made += new
                self._made_folders += new
        return made

    def _check_inside(self, name: str) -> None:
        folder = os.path.dirname(name)
        if folder in self._inside:
            return
        if elsewhere := leads_out(self.folder, name):
            raise RefusedError(
                f"{folder} in {self.folder} is a link to {elsewhere}",
                hint="remove the link, or choose another target",
            )
        self._inside.add(folder)

    def _lock(self) -> bool:
        """False on a filesystem without locks. There the process id in the names keeps runs apart, and nothing is
        swept, since what looks left over may be another run's."""
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise RefusedError(
                    f"another coldctl is writing to {self.folder}", hint="wait until it has ended, then run again"
                ) from error
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF):
                raise
            return False
        return True


def _make_folders(folder: str) -> list[str]:
    """Make `folder` and its parents; the ones that were not there before, outermost first. All of them, or none."""
    missing = []
    parent = os.path.abspath(folder)
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    made: list[str] = []
    for path in reversed(missing):
        try:
            os.mkdir(path)
        except OSError:
            remove_folders(made)
            raise
        made.append(path)
    return made
