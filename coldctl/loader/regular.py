"""Opening regular files and nothing else. Standard library only.

A FIFO blocks whoever opens it and a device may act on being opened, so a path is looked at before it is opened, and the
descriptor again after.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


class NotRegularError(OSError):
    """The path leads to something that is not a regular file; `kind` says what, with its article."""

    def __init__(self, path: str, mode: int) -> None:
        self.kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        super().__init__(errno.EINVAL, f"it is {self.kind}", path)


def stat_regular(path: str) -> os.stat_result:
    """The stat of the regular file that `path` leads to. Raises NotRegularError, and OSError as os.stat does."""
    try:
        found = os.stat(path)
    except ValueError as error:  # a NUL or a lone surrogate: no file can have that name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularError(path, found.st_mode)
    return found


def open_for_reading(path: str, flags: int = 0) -> FileIO:
    """The file at `path`, open for reading, with these flags of open(2) besides the usual. Raises OSError as os.open.

    As an object that has the descriptor before any code of Python runs: an interrupt right after the call to the kernel
    loses none, and one before `close` has the object close it when it goes.
    """
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    return next(map(FileIO, map(os.open, (path,), (flags,))))


def open_regular(path: str) -> tuple[FileIO, os.stat_result]:
    """The regular file at `path`, open for reading, and its stat. The caller closes it.

    Raises NotRegularError, and OSError as os.stat and os.open do.
    """
    stat_regular(path)
    file = open_for_reading(path)
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularError(path, found.st_mode)
    except BaseException:
        file.close()
        raise
    return file, found


class opened:  # noqa: N801 -- used as a function: `with opened(path) as (fd, status)`
    """A read-only descriptor of the regular file at `path` (links followed) and its status, closed afterwards.

    Never opens for writing: on overlayfs that would copy the whole lower file up. Raises as `open_regular`. A class,
    since contextlib takes longer to import than a probe can spare.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> tuple[int, os.stat_result]:
        self._file, status = open_regular(self._path)
        return self._file.fileno(), status

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_at(fd: int, offset: int, count: int) -> bytes:
    """`count` bytes from `offset`, fewer only where the file ends. The caller has checked `count` against the size."""
    first = os.pread(fd, count, offset)
    if len(first) == count or not first:
        return first
    parts = [first]
    got = len(first)
    while got < count and (part := os.pread(fd, count - got, offset + got)):
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def refusal(error: OSError, path: str, name: str) -> tuple[str, str] | None:
    """(rule, message) when `error` is a fault of the checkpoint; None when the file is there but cannot be read."""
    if isinstance(error, NotRegularError):
        return "file.not-regular", f"{name} is {error.kind}, not a regular file"
    if error.errno in _ABSENT:
        target = _link_target(path)
        if target is not None:
            return "file.dangling-link", f"{name} is a link to {target}, which does not exist"
        return "file.missing", f"{name} does not exist"
    if error.errno == errno.ELOOP:
        return "file.link-loop", f"{name} is a link that leads back to itself"
    if error.errno == errno.ENAMETOOLONG:
        return "file.name-too-long", f"{name} is longer than the filesystem allows for a name"
    return None


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None
