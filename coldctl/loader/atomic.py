"""Files that appear whole or not at all: temporary names in the target folder, sync, rename, and the sweep.

A folder is written by one coldctl at a time (flock on the folder itself, which leaves nothing behind). What a
killed run left is removed by the next run that writes there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from coldctl.errors import RefusedError, from_os_error

TEMPORARY_PREFIX = ".coldctl-"
_TEMPORARY_SUFFIX = ".tmp"

_live: set[Staging] = set()


def remove_temporaries() -> None:
    """Remove the temporary files of every staging that is under way: the last act before a forced exit."""
    for staging in tuple(_live):
        staging.abandon()


class Staging:
    """A target folder while files are made for it. Use as a context manager; without `commit` nothing appears.

    Raises RefusedError when another process is writing to the folder, and what `from_os_error` makes of a folder
    that cannot be made or written.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._made_folders: list[str] = []
        self._given_names: list[str] = []
        self._temporaries: dict[str, str] = {}
        self._numbers = itertools.count()
        self._lock_fd = -1

    def __enter__(self) -> Self:
        try:
            _make_folders(self.folder, self._made_folders)
            self._lock_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _live.add(self)
            if self._lock():
                self._sweep()
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
        temporary = self.path_of_temporary(next(self._numbers))
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

    def path_of_temporary(self, number: int) -> str:
        return os.path.join(self.folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{number}{_TEMPORARY_SUFFIX}")

    def commit(self, names: list[str], *, remove: list[str]) -> None:
        """Give all files their names, in the order of `names`, after taking the files in `remove` away.

        Every file is synced before the first rename, the folders after the last. Where nothing is written over, an
        error takes all names back. Otherwise it leaves each name old, new or absent, never torn, as a crash does: so
        what makes the set usable (the index) is renamed last.
        """
        folders = {self.folder} | {os.path.dirname(os.path.join(self.folder, name)) for name in names}
        all_new = not remove and not any(os.path.lexists(os.path.join(self.folder, name)) for name in names)
        for name in names:
            sync(self._temporaries[name])
        for folder in sorted(folders):
            _make_folders(folder, self._made_folders)
        for name in remove:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        for name in names:
            path = os.path.join(self.folder, name)
            os.replace(self._temporaries[name], path)
            del self._temporaries[name]
            if all_new:
                self._given_names.append(path)
        for folder in sorted(folders | {os.path.dirname(made) for made in self._made_folders}):
            sync(folder)
        self._given_names.clear()
        self._made_folders.clear()

    def abandon(self) -> None:
        """Remove what was made without a commit, and the folders that were made for it when they are empty again."""
        for path in (*self._temporaries.values(), *self._given_names):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._temporaries.clear()
        self._given_names.clear()
        for folder in reversed(self._made_folders):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _check_inside(self, name: str) -> None:
        target = os.path.realpath(self.folder)
        folder = os.path.realpath(os.path.dirname(os.path.join(self.folder, name)))
        if os.path.commonpath([target, folder]) != target:
            raise RefusedError(
                f"{os.path.dirname(name)} in {self.folder} is a link to {folder}",
                hint="remove the link, or choose another target",
            )

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

    def _sweep(self) -> None:
        for entry in stale_temporaries(self.folder):
            os.unlink(entry)


def stale_temporaries(folder: str) -> Iterator[str]:
    """Paths of what a killed run left in `folder`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX) and entry.name.endswith(_TEMPORARY_SUFFIX):
                yield entry.path


def sync(path: str) -> None:
    """fsync the file or folder `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: str, made: list[str]) -> None:
    """Make `folder` and its parents, and add the ones that were not there before to `made`, outermost first."""
    missing = []
    parent = os.path.abspath(folder)
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for path in reversed(missing):
        os.mkdir(path)
        made.append(path)
