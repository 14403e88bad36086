"""Where bytes come from. A Source names itself and opens; an open one fills a caller's buffer from an offset.

Local files are the one kind so far. All reads are `pread` into reused buffers, so that a shrinking file or an I/O
error is an error with an offset, never a SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from coldctl.errors import ChangedError, UnreadableError, from_os_error

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes and mtime in nanoseconds: two equal ones are the same file in the same state."""


class OpenSource(Protocol):
    """An open source. One thread at a time may use it."""

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill `buffer` from `offset_bytes` on. Raises ChangedError at an early end, UnreadableError for bad blocks."""

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


class OpenLocalFile:
    def __init__(self, source: LocalFile) -> None:
        self._source = source
        try:
            self.fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise from_os_error(error, "open", source.path) from error
        try:
            self.check_unchanged()
        except BaseException:
            os.close(self.fd)
            raise

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        done_bytes = 0
        while done_bytes < len(buffer):
            try:
                got_bytes = os.preadv(self.fd, [buffer[done_bytes:]], offset_bytes + done_bytes)
            except OSError as error:
                raise UnreadableError(
                    f"cannot read {self._source.name} at byte {offset_bytes + done_bytes}: {error.strerror}"
                ) from error
            if got_bytes == 0:
                raise ChangedError(
                    f"{self._source.name} ended at byte {offset_bytes + done_bytes} while it was read, "
                    f"expected {self._source.size_bytes} bytes"
                )
            done_bytes += got_bytes

    def check_unchanged(self) -> None:
        if identity_of(os.fstat(self.fd)) != self._source.identity:
            raise ChangedError(f"{self._source.name} was changed or replaced since its header was read")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


Opened = TypeVar("Opened", bound=OpenSource)


class LastOpened(Generic[Opened]):
    """The source that one thread has open: the last one only, since plans seldom go back to a file.

    `open_source` opens one; `checked` makes it an error, too, when a source that is left has changed since it was
    planned.
    """

    def __init__(self, open_source: Callable[[Source], Opened], *, checked: bool) -> None:
        self._open_source = open_source
        self._checked = checked
        self._source: Source | None = None
        self._opened: Opened | None = None

    def get(self, source: Source) -> Opened:
        if self._opened is None or source is not self._source:
            self._leave()
            self._opened, self._source = self._open_source(source), source
        return self._opened

    def _leave(self) -> None:
        if self._opened:
            leaving, self._opened = self._opened, None
            with leaving:
                if self._checked:
                    leaving.check_unchanged()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave()
        elif self._opened:
            self._opened.__exit__(kind, error, trace)


def identity_of(stat: os.stat_result) -> Identity:
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
