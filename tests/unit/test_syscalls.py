"""coldctl.loader.syscalls: errors come as OSError with the kernel's number, and nothing writes past a buffer."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coldctl.loader import syscalls
from coldctl.loader.syscalls import PAGE_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2 * PAGE_BYTES + 1))
    return path


@pytest.mark.parametrize(
    "call",
    [
        lambda: syscalls.fallocate(-1, 0, 1),
        lambda: syscalls.sync_file_range(-1, 0, 1),
        lambda: syscalls.map_read_only(-1, 0, PAGE_BYTES),
        lambda: syscalls.read_is_immediate(-1, 0),
        lambda: syscalls.cached_bytes(-1, 0, 1),
    ],
)
def test_a_bad_descriptor(call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        call()
    assert caught.value.errno == errno.EBADF


def test_fallocate_gives_the_file_its_size(file: Path) -> None:
    with file.open("r+b") as opened:
        syscalls.fallocate(opened.fileno(), 0, 10 * PAGE_BYTES)
    assert file.stat().st_size == 10 * PAGE_BYTES
    assert file.stat().st_blocks * 512 >= 10 * PAGE_BYTES


def test_mincore_refuses_a_buffer_that_is_too_small(file: Path) -> None:
    with file.open("rb") as opened:
        address = syscalls.map_read_only(opened.fileno(), 0, 2 * PAGE_BYTES + 1)
        try:
            syscalls.mincore(address, 2 * PAGE_BYTES + 1, ctypes.create_string_buffer(3))
            with pytest.raises(ValueError, match="3 pages"):
                syscalls.mincore(address, 2 * PAGE_BYTES + 1, ctypes.create_string_buffer(2))
        finally:
            syscalls.unmap(address, 2 * PAGE_BYTES + 1)


def test_populating_past_the_end_is_an_error_and_no_signal(file: Path) -> None:
    if not syscalls.populate_read_supported():
        pytest.skip("the kernel has no MADV_POPULATE_READ (it came with Linux 5.14)")
    with file.open("rb") as opened:
        address = syscalls.map_read_only(opened.fileno(), 0, 8 * PAGE_BYTES)
        try:
            syscalls.populate_read(address, 3 * PAGE_BYTES)
            with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
                syscalls.populate_read(address, 4 * PAGE_BYTES)
        finally:
            syscalls.unmap(address, 8 * PAGE_BYTES)


def test_xfs_geometry_elsewhere() -> None:
    with open("/proc/self/status", "rb") as opened, pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
        syscalls.xfs_allocation_group_bytes(opened.fileno())


def test_a_rename_takes_a_free_name_and_no_other(tmp_path: Path) -> None:
    old, taken = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / "taken"
    old.write_bytes(b"old")
    taken.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        syscalls.rename_no_replace(str(old), str(taken))
    syscalls.rename_no_replace(str(old), str(tmp_path / "free"))
    assert (tmp_path / "free").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["free", "taken"]
    with pytest.raises(FileNotFoundError):
        syscalls.rename_no_replace(str(old), str(tmp_path / "other"))


def test_a_filesystem_is_synced_by_any_descriptor_on_it(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    syscalls.syncfs(descriptor)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        syscalls.syncfs(descriptor)


def test_memory_that_was_populated_is_there_and_holds_zeros() -> None:
    if not syscalls.populate_read_supported():
        pytest.skip("the kernel has no MADV_POPULATE_WRITE (it came with Linux 5.14)")
    nbytes = 64 * PAGE_BYTES
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        byte = ctypes.c_char.from_buffer(memory)
        answer = ctypes.create_string_buffer(64)
        syscalls.populate_write(ctypes.addressof(byte) + 16 * PAGE_BYTES, 32 * PAGE_BYTES)
        syscalls.mincore(ctypes.addressof(byte), nbytes, answer)
        assert [state & 1 for state in answer.raw] == [0] * 16 + [1] * 32 + [0] * 16
        del byte
        assert memory[:] == bytes(nbytes)


def test_cached_bytes_counts_whole_pages_of_what_is_in_the_page_cache(file: Path) -> None:
    with file.open("rb") as opened:
        fd = opened.fileno()
        os.fsync(fd)
        assert syscalls.cached_bytes(fd, 0, 2 * PAGE_BYTES + 1) == 3 * PAGE_BYTES
        assert syscalls.cached_bytes(fd, PAGE_BYTES, 1) == PAGE_BYTES
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert syscalls.cached_bytes(fd, 0, 2 * PAGE_BYTES + 1) == 0
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # or the kernel would read ahead
        os.pread(fd, 1, PAGE_BYTES)
        assert syscalls.cached_bytes(fd, 0, 2 * PAGE_BYTES + 1) == PAGE_BYTES
