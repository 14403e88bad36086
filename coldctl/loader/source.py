"""Where bytes come from. A Source names itself and opens; an open one fills a caller's buffer from an offset.

Local files are the one kind so far. All reads are `pread` into reused buffers, so that a shrinking file or an I/O
error is an error with an offset, never a SIGBUS.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from coldctl.errors import ChangedError, EnvironmentLacksError, UnreadableError, from_os_error
from coldctl.loader.regular import open_for_reading

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes and mtime in nanoseconds: two equal ones are the same file in the same state."""


class OpenSource(Protocol):
    """An open source. One thread at a time may use it."""

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill `buffer` from `offset_bytes` on. Raises ChangedError at an early end, UnreadableError for bad blocks."""

    def scatter(self, buffers: Sequence[memoryview], offset_bytes: int) -> None:
        """`read_into` of several buffers, one after the other, at most 1024 (IOV_MAX)."""

    def check_unchanged(self) -> None:
        """Raise ChangedError when the source is no longer what it was when it was planned."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """Something that holds tensors at known offsets."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    def open(self) -> OpenSource: ...
    def open_direct(self) -> OpenSource | None:
        """One whose reads go past the page cache, and whose buffers, offsets and lengths are multiples of 4096.

        None where the source has no such way.
        """


class LocalFile:
    """A file that was looked at before, and that must still be the same when its bytes are read."""

    def __init__(self, name: str, path: str, identity: Identity) -> None:
        self.name = name
        self.path = path
        self.identity = identity

    @property
    def size_bytes(self) -> int:
        return self.identity[2]

    def open(self) -> OpenLocalFile:
        """Raises ChangedError when it is another file by now, and what `from_os_error` makes of a failed open."""
        return OpenLocalFile(self)

    def open_direct(self) -> OpenLocalFile | None:
        """Opened with O_DIRECT; None where the filesystem refuses that. A filesystem may still refuse single reads."""
        try:
            return OpenLocalFile(self, os.O_DIRECT)
        except EnvironmentLacksError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL:
                return None
            raise


class OpenLocalFile:
    def __init__(self, source: LocalFile, flags: int = 0) -> None:
        self._source = source
        try:
            self._file = open_for_reading(source.path, flags)
        except OSError as error:
            failed = from_os_error(error, "open", source.name)
            failed.file = source.name
            raise failed from error
        self.fd = self._file.fileno()
        try:
            self.check_unchanged()
        except BaseException:
            self._file.close()
            raise

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        self.scatter([buffer], offset_bytes)

    def scatter(self, buffers: Sequence[memoryview], offset_bytes: int) -> None:
        left = _unfilled(buffers, 0)
        while left:
            try:
                got_bytes = os.preadv(self.fd, left, offset_bytes)
            except OSError as error:
                raise self._unreadable(error, offset_bytes) from error
            left = _unfilled(left, got_bytes)
            if left and got_bytes == 0:
                raise self._ended(offset_bytes)
            offset_bytes += got_bytes

    def _unreadable(self, error: OSError, offset_bytes: int) -> UnreadableError:
        name = self._source.name
        return UnreadableError(
            f"cannot read {name} at byte {offset_bytes}: {error.strerror}", file=name, offset_bytes=offset_bytes
        )

    def _ended(self, offset_bytes: int) -> ChangedError:
        name, size_bytes = self._source.name, self._source.size_bytes
        return ChangedError(
            f"{name} ended at byte {offset_bytes} while it was read, expected {size_bytes} bytes",
            file=name,
            offset_bytes=offset_bytes,
        )

    def check_unchanged(self) -> None:
        if identity_of(os.fstat(self.fd)) != self._source.identity:
            name = self._source.name
            raise ChangedError(f"{name} was changed or replaced since its header was read", file=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


Opened = TypeVar("Opened", bound=OpenSource)


class LastOpened(Generic[Opened]):
    """The source that one thread has open: the last one only, since plans seldom go back to a file.

    `open_source` opens one; `checked` makes it an error, too, when a source that is left has changed since it was
    planned: a ChangedError that names the tensor which was read of it last.
    """

    def __init__(self, open_source: Callable[[Source], Opened], *, checked: bool) -> None:
        self._open_source = open_source
        self._checked = checked
        self._source: Source | None = None
        self._opened: Opened | None = None
        self._tensor: str | None = None

    def get(self, source: Source, tensor: str | None = None) -> Opened:
        """`source`, open; `tensor` is what is about to be read of it, where that has a name."""
        if self._opened is None or source is not self._source:
            self._leave()
            self._opened, self._source = self._open_source(source), source
        self._tensor = tensor
        return self._opened

    def _leave(self) -> None:
        if self._opened:
            leaving, self._opened = self._opened, None
            with leaving:
                if self._checked:
                    self._check(leaving)

    def _check(self, leaving: Opened) -> None:
        try:
            leaving.check_unchanged()
        except ChangedError as error:
            error.tensor = error.tensor or self._tensor
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave()
        elif self._opened:
            self._opened.__exit__(kind, error, trace)


def _unfilled(buffers: Sequence[memoryview], got_bytes: int) -> Sequence[memoryview]:
    """What is left of `buffers` when their first `got_bytes` are filled."""
    for index, buffer in enumerate(buffers):
        if got_bytes < len(buffer):
            return [buffer[got_bytes:], *buffers[index + 1 :]]
        got_bytes -= len(buffer)
    return []


def identity_of(stat: os.stat_result) -> Identity:
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
