"""Bringing ranges of a file into the page cache, completely and with every failure named.

`madvise(WILLNEED)`, `posix_fadvise` and `readahead` are not used: one call brings only a few MiB in, and reports
success also when blocks are unreadable. Success here means that every page was read; whether all stayed is for
`coldctl.loader.pages.residency` to say, since memory pressure or a cgroup limit may have taken the first ones again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Protocol

from coldctl.loader.host.mounts import mount_of, read_ahead_kib
from coldctl.loader.scratch import scratch
from coldctl.loader.syscalls import (
    PAGE_BYTES,
    map_read_only,
    populate_read,
    populate_read_supported,
    read_ahead_in_large_pieces,
    unmap,
)

WINDOW_BYTES = 16 << 20
_SCRATCH_BYTES = 1 << 20
_LARGE_READ_AHEAD_BYTES = 4 << 20
BLOCK_BYTES = 2 << 20

FailedRanges = list[tuple[int, int, str]]


class PageReader(Protocol):
    """Reads ranges of files into the page cache. `name` is what reports call it. Any thread may call `read`."""

    name: str
    reach_bytes: int

    def read(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        """Bring `nbytes` from `offset_bytes` on into the page cache, and return what could not be read.

        The kernel may begin at a whole block of 2 MiB before the range and read ahead `reach_bytes` past it. Each
        failure is (offset, length, error) in bytes and the system's words, in file order, exact to the page; all other
        bytes of the range were read. A range past the end of the file is a failure too: the file shrank.
        """

    def read_exactly(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        """`read` without read-ahead: no other pages come in, unless reads with read-ahead have marked pages here.

        The descriptor's read-ahead advice is back to normal afterwards.
        """


class PreadReader:
    """pread into one reused buffer a thread: costs a copy, works on every kernel and filesystem.

    `read_ahead_bytes` is the most that the device reads ahead.
    """

    name = "pread"

    def __init__(self, read_ahead_bytes: int = 0) -> None:
        # A read-ahead window may begin where the one before ended, and be as long again.
        self.reach_bytes = 2 * max(_LARGE_READ_AHEAD_BYTES, read_ahead_bytes) + _LARGE_READ_AHEAD_BYTES
        self._threads = threading.local()

    def read(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        return self._by_pread(fd, offset_bytes, nbytes)

    def read_exactly(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        # Told that reads are random, the kernel reads what each call asks for, in one piece, and nothing ahead.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        failed = self._by_pread(fd, offset_bytes, nbytes)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
        return failed

    def _by_pread(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        scratch = self._scratch()
        failed: FailedRanges = []
        offset, end = offset_bytes, offset_bytes + nbytes
        while offset < end:
            try:
                got = os.preadv(fd, [scratch[: end - offset]], offset)
            except OSError:
                block = offset - offset % BLOCK_BYTES
                stop = min(block + BLOCK_BYTES, end)
                for found in unreadable_pages(fd, max(block, offset_bytes), stop):
                    _add(failed, *found)
                offset = stop
                continue
            if got == 0:
                _add(failed, offset, end - offset, _file_ends(fd))
                break
            offset += got
        return failed

    def _scratch(self) -> memoryview:
        buffer: memoryview | None = getattr(self._threads, "scratch", None)
        if buffer is None:
            buffer = self._threads.scratch = scratch(_SCRATCH_BYTES)
        return buffer


class PopulateReader(PreadReader):
    """MADV_POPULATE_READ in small windows: no copy, and the least CPU a GiB. Needs Linux 5.14.

    Each window is unmapped when it is done, since mapped pages count as this process's memory. A window that fails is
    read again by pread, which says where and why.
    """

    name = "populate"

    def read(self, fd: int, offset_bytes: int, nbytes: int) -> FailedRanges:
        failed: FailedRanges = []
        end = offset_bytes + nbytes
        start = offset_bytes - offset_bytes % PAGE_BYTES
        while start < end:
            stop = min(start + WINDOW_BYTES, end)
            try:
                _populate_window(fd, start, stop - start)
            except OSError:
                first = max(start, offset_bytes)
                for found in self._by_pread(fd, first, stop - first):
                    _add(failed, *found)
            start = stop
        return failed


def choose_reader(path: str) -> PageReader:
    """The cheapest reader that this kernel has, for the filesystem that `path` is on."""
    mount = mount_of(path)
    device_kib = read_ahead_kib(mount) if mount else None
    read_ahead_bytes = (device_kib or 0) * 1024
    return PopulateReader(read_ahead_bytes) if populate_read_supported() else PreadReader(read_ahead_bytes)


def _populate_window(fd: int, offset: int, nbytes: int) -> None:
    address = map_read_only(fd, offset, nbytes)
    try:
        read_ahead_in_large_pieces(address, nbytes)
        populate_read(address, nbytes)
    finally:
        unmap(address, nbytes)


def unreadable_pages(fd: int, start: int, stop: int) -> Iterator[tuple[int, int, str]]:
    """The pages of a range that cannot be read, as `PageReader.read` tells of them, each found when it is asked for.

    The kernel caches up to 2 MiB as one folio, and one bad block in it hides its good neighbours. So what there is of
    the range is dropped, and read again without read-ahead, which makes folios of a single page.
    """
    page = scratch(PAGE_BYTES)
    os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        while start < stop:
            next_page = min((start // PAGE_BYTES + 1) * PAGE_BYTES, stop)
            error = _error_of_reading(fd, page[: next_page - start], start)
            if error is not None:
                yield start, next_page - start, error
            start = next_page
    finally:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)


def _error_of_reading(fd: int, buffer: memoryview, offset: int) -> str | None:
    try:
        got = os.preadv(fd, [buffer], offset)
    except OSError as error:
        return error.strerror or str(error)
    return None if got else _file_ends(fd)


def _file_ends(fd: int) -> str:
    return f"the file ends at byte {os.fstat(fd).st_size}"


def _add(failed: FailedRanges, offset: int, length: int, error: str) -> None:
    """Append a range, or extend the last one when this continues it with the same error."""
    if failed:
        last_offset, last_length, last_error = failed[-1]
        if last_offset + last_length == offset and last_error == error:
            failed[-1] = (last_offset, last_length + length, error)
            return
    failed.append((offset, length, error))
