"""Every call to the kernel that Python's standard library does not offer, or offers without freeing the GIL.

Each docstring says what the kernel promises and what it does not. All functions raise OSError with the kernel's
errno. `ctypes.CDLL` frees the GIL for the time of a call, where `mmap.mmap.madvise` of CPython 3.11 holds it.
Sources: the Linux manual pages named below, and measurements on ext4, xfs, btrfs, tmpfs and overlayfs.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from typing import NamedTuple

PAGE_BYTES = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.syncfs.argtypes = [ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]

_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_SYNC_FILE_RANGE_WAIT_BEFORE = 1
_SYNC_FILE_RANGE_WRITE = 2
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_SYS_CACHESTAT = 451
_PR_SET_PDEATHSIG = 1

_FS_IOC_FIEMAP = 0xC020660B
_FIEMAP_HEADER = struct.Struct("=QQLLLL")
_FIEMAP_EXTENT = struct.Struct("=QQQ16xL12x")
_FIEMAP_BATCH = 512
FIEMAP_LAST = 0x1
FIEMAP_UNKNOWN = 0x2
FIEMAP_DELALLOC = 0x4
FIEMAP_ENCODED = 0x8

_XFS_IOC_FSGEOMETRY_V1 = 0x80705864
_XFS_GEOMETRY_BYTES = 112


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fallocate(fd: int, offset: int, length: int) -> None:
    """Allocate `length` bytes of disk from `offset` on, and extend the file to hold them (mode 0, fallocate(2)).

    Promises that later writes into the range do not fail for want of space (not on copy-on-write filesystems).
    Does not promise contiguity: it succeeds with thousands of extents. On ext4 a failure with ENOSPC leaves all that
    was free allocated to the file: unlink it. Raises EOPNOTSUPP or ENOSYS where the filesystem cannot (ext3, NFS below
    4.2); `os.posix_fallocate` is no substitute, since glibc then writes a byte into every block.
    """
    _check(_libc.fallocate(fd, 0, offset, length))


def sync_file_range(fd: int, offset: int, nbytes: int) -> None:
    """Wait for the pages of the range that are on their way to disk, then send the dirty ones (sync_file_range(2)).

    Called again and again while a file grows, it keeps one batch in flight and bounds the dirty memory to two.

    Promises nothing about durability: neither metadata nor the disk's own cache are flushed. It may block while the
    device's queue is full. `nbytes` 0 means to the end of the file. ESPIPE and ENOSYS mean that the file or the kernel
    cannot.
    """
    _check(_libc.sync_file_range(fd, offset, nbytes, _SYNC_FILE_RANGE_WAIT_BEFORE | _SYNC_FILE_RANGE_WRITE))


def syncfs(fd: int) -> None:
    """Write all that is dirty on the filesystem of `fd` to its device, and wait for it (syncfs(2)).

    Promises what fsync of every file would, in one go, and also waits for what other programs wrote there. Kernels
    before 5.8 report no failed writes; a FUSE filesystem may not pass it on to its server.
    """
    _check(_libc.syncfs(fd))


def rename_no_replace(old: str, new: str) -> None:
    """Rename `old` to `new` where nothing stands under that name yet (renameat2(2) with RENAME_NOREPLACE).

    Promises that of two who try the same name one fails, with EEXIST. Raises EINVAL where the filesystem cannot (NFS,
    most of FUSE), ENOSYS where the kernel or the C library cannot.
    """
    try:
        renameat2 = _libc.renameat2
    except AttributeError:  # not every C library wraps it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    _check(renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _RENAME_NOREPLACE))


def map_read_only(fd: int, offset: int, nbytes: int) -> int:
    """Map `nbytes` of the file, shared and read-only, and return the address (mmap(2)). `offset` is a whole page's.

    Promises an address, not the bytes: touching a page whose block is unreadable, or that lies past the file's end,
    kills the process with SIGBUS. So nothing here ever touches one; the kernel does, and reports (`populate_read`).
    """
    address: int | None = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def unmap(address: int, nbytes: int) -> None:
    """Remove a mapping that `map_read_only` made (munmap(2)). The page cache keeps what was read through it."""
    _check(_libc.munmap(address, nbytes))


def read_ahead_in_large_pieces(address: int, nbytes: int) -> None:
    """Have faults on the range read ahead 4 MiB at a time in folios of 2 MiB (MADV_HUGEPAGE; for files since 5.18).

    A hint: it promises nothing, may read up to 4 MiB past the range, and changes nothing on filesystems without large
    folios. Without it each fault reads no more than the device's read_ahead_kb, usually 128 KiB, and populating costs
    nine times the CPU. Kernels without transparent huge pages refuse it with EINVAL, which is no failure here.
    """
    _libc.madvise(address, nbytes, _MADV_HUGEPAGE)


def populate_read(address: int, nbytes: int) -> None:
    """Read every page of the mapped range into the page cache and wait for it (MADV_POPULATE_READ, Linux 5.14).

    Promises on success that all pages were resident at some moment of the call; under memory pressure or a cgroup limit
    the first may be gone again. Raises EFAULT at the first page that cannot be read or lies past the file's end (pages
    before it are resident, those after it were not tried), EINVAL on kernels without it.
    """
    _check(_libc.madvise(address, nbytes, _MADV_POPULATE_READ))


def populate_write(address: int, nbytes: int) -> None:
    """Have every page of a range of anonymous memory there, zeros where it was not (MADV_POPULATE_WRITE, Linux 5.14).

    A hint: kernels before 5.14 refuse it, and what it could not do happens when the pages are used. btrfs needs it for
    direct reads: it faults in no pages for them, and reads through the page cache into those that are not there
    (`btrfs_direct_read` in fs/btrfs/direct-io.c; measured on 6.18, at half the rate). To ext4 and xfs it is the same.
    """
    _libc.madvise(address, nbytes, _MADV_POPULATE_WRITE)


def populate_read_supported() -> bool:
    """Whether this kernel knows MADV_POPULATE_READ, found out by populating one anonymous page.

    Kernels before 5.14 answer EINVAL. Success does not promise that the caller's filesystem can be mapped.
    """
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            page.madvise(_MADV_POPULATE_READ)
        except OSError:
            return False
    return True


def mincore(address: int, nbytes: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
    """Write one byte for each page of the mapped range into `buffer`; its lowest bit says "resident" (mincore(2)).

    Promises a snapshot that may be old at return. Since Linux 5.2 it says that all is resident, without an error, when
    the caller neither owns the file nor may write it: ask `coldctl.loader.pages.residency` whether to believe it.
    """
    pages = -(-nbytes // PAGE_BYTES)
    if len(buffer) < pages:
        raise ValueError(f"mincore of {pages} pages needs a buffer of as many bytes, not {len(buffer)}")
    _check(_libc.mincore(address, nbytes, ctypes.addressof(buffer)))


class FiemapExtent(NamedTuple):
    """One extent as the filesystem reports it, in bytes. `physical` is an address on the device (on btrfs a logical
    one of the whole filesystem) and means nothing when `flags` has FIEMAP_UNKNOWN."""

    logical: int
    physical: int
    length: int
    flags: int


def fiemap(fd: int, nbytes: int) -> Iterator[FiemapExtent]:
    """The extents that hold the file's first `nbytes`, in file order (FS_IOC_FIEMAP; no privilege needed).

    Promises what the filesystem believes now: ranges written but not yet allocated come as FIEMAP_DELALLOC, and a file
    that changes meanwhile may come out inconsistent, since this asks again for every 512 extents. Space allocated past
    `nbytes` may be part of the last one. Raises EOPNOTSUPP or ENOTTY where the filesystem has no such map.
    """
    start = 0
    while start < nbytes:
        request = bytearray(_FIEMAP_HEADER.size + _FIEMAP_BATCH * _FIEMAP_EXTENT.size)
        _FIEMAP_HEADER.pack_into(request, 0, start, nbytes - start, 0, 0, _FIEMAP_BATCH, 0)
        fcntl.ioctl(fd, _FS_IOC_FIEMAP, request)
        mapped = _FIEMAP_HEADER.unpack_from(request)[3]
        if mapped == 0:
            return
        for index in range(mapped):
            fields = _FIEMAP_EXTENT.unpack_from(request, _FIEMAP_HEADER.size + index * _FIEMAP_EXTENT.size)
            extent = FiemapExtent(*fields)
            yield extent
            if extent.flags & FIEMAP_LAST:
                return
        start = extent.logical + extent.length


def cached_bytes(fd: int, offset: int, nbytes: int) -> int:
    """How many bytes of whole pages of the range are in the page cache (cachestat(2), Linux 6.5), in microseconds.

    Promises less than mincore: it counts pages whose read failed, and on overlayfs it sees none at all. Raises ENOSYS
    on older kernels, EPERM where a container forbids it or the caller may not know.
    """
    counts = (ctypes.c_uint64 * 5)()
    wanted = (ctypes.c_uint64 * 2)(offset, nbytes)
    result = _libc.syscall(_SYS_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(counts), 0)
    _check(result)
    return int(counts[0]) * PAGE_BYTES


def read_is_immediate(fd: int, offset: int) -> bool:
    """Whether the byte at `offset` can be had from the page cache without waiting (preadv2(2) with RWF_NOWAIT).

    A miss (False) starts a read of the page: asking changes the answer of the next question, and where the disk is as
    fast as memory the read may be over before the kernel looks, so that a miss now and then passes for a hit. Raises
    EOPNOTSUPP where the filesystem does not support it (overlayfs, tmpfs). It needs no more than read permission.
    """
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise
    return True


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent has ended, however that was (prctl(2), PR_SET_PDEATHSIG).

    Promises nothing for a parent that ended before the call, and counts the end of the thread that started this process
    as its parent's. A child of this process does not inherit it.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def xfs_allocation_group_bytes(fd: int) -> int:
    """The size in bytes of an allocation group of the xfs that holds the file (XFS_IOC_FSGEOMETRY_V1).

    No extent crosses from one group into the next. Raises ENOTTY elsewhere than on xfs.
    """
    geometry = bytearray(_XFS_GEOMETRY_BYTES)
    fcntl.ioctl(fd, _XFS_IOC_FSGEOMETRY_V1, geometry)
    block_bytes, _, group_blocks = struct.unpack_from("=LLL", geometry)
    return int(block_bytes * group_blocks)
