"""Where bytes come from. A Source names itself and opens; an open one fills a caller's buffer from an offset.

Local files are the one kind so far. All reads are `pread` into reused buffers, so that a shrinking file or an I/O
error is an error with an offset, never a SIGBUS.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Protocol, Self

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


class LastOpened:
    """The source that one thread has open: the last one only, since plans seldom go back to a file.

    `checked`: a source that changed since it was planned is an error when it is left, too.
    """

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked
        self._source: LocalFile | None = None
        self._open: OpenLocalFile | None = None

    def get(self, source: LocalFile) -> OpenLocalFile:
        if self._open is None or self._source is None or source.path != self._source.path:
            self._leave()
            self._open, self._source = source.open(), source
        return self._open

    def _leave(self) -> None:
        if self._open:
            leaving, self._open = self._open, None
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
        elif self._open:
            self._open.__exit__(kind, error, trace)


def identity_of(stat: os.stat_result) -> Identity:
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
