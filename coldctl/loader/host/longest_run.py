"""The longest run of adjacent blocks that a filesystem can give to one file, which sets how few extents are possible.

ext4 keeps its own tables between the blocks of files, xfs cuts at its allocation groups, btrfs at its chunks. What
holds on each was looked at with fallocate on fresh filesystems.
"""

from __future__ import annotations

import os
import struct

from coldctl.loader.host.mounts import BlockDevice, Mount, block_device
from coldctl.loader.syscalls import xfs_allocation_group_bytes

_GIB = 1 << 30
_XFS_EXTENT_BLOCKS = 1 << 21

_EXT4_SUPERBLOCK_OFFSET = 1024
_EXT4_MAGIC = 0xEF53
_EXT4_SPARSE_SUPER = 0x1
_EXT4_64BIT = 0x80
_EXT4_FLEX_BG = 0x200
_EXT4_LEADING_GROUPS = 256
_EXT4_PIECE_BYTES = 8 << 20


def longest_run_bytes(fd: int, mount: Mount | None) -> tuple[int | None, str | None]:
    """The longest run in bytes on the filesystem of the open file, or None and the reason why it is not known.

    Free space may be too broken up to give it: it is the best that is possible, not what is to be had now.
    """
    if mount is None:
        return None, "the filesystem is not known, since /proc/self/mountinfo does not name it"
    filesystem = os.fstatvfs(fd)
    if mount.filesystem == "ext4":
        exact = _ext4_run_bytes(block_device(mount))
        return exact or _ext4_usual_run_bytes(filesystem.f_bsize), None
    if mount.filesystem == "xfs":
        return min(_XFS_EXTENT_BLOCKS * filesystem.f_bsize, xfs_allocation_group_bytes(fd)), None
    if mount.filesystem == "btrfs":
        return min(_GIB, filesystem.f_blocks * filesystem.f_frsize // 10), None
    return None, f"not known how few extents {mount.filesystem} can do"


def _ext4_usual_run_bytes(block_bytes: int) -> int:
    """120 MiB at blocks of 4 KiB: a group is as many blocks as one block has bits, and its tables take a sixteenth."""
    return 8 * block_bytes * block_bytes * 15 // 16


def _ext4_run_bytes(device: BlockDevice | None) -> int | None:
    """The longest gap between the tables of an ext4, worked out from its superblock; None unless that is readable."""
    if device is None:
        return None
    try:
        fd = os.open(device.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        superblock = os.pread(fd, 1024, _EXT4_SUPERBLOCK_OFFSET)
    except OSError:
        return None
    finally:
        os.close(fd)
    return ext4_longest_gap_bytes(superblock)


def ext4_longest_gap_bytes(superblock: bytes) -> int | None:
    """The longest run of blocks without tables among the first 256 groups of the ext4 with this superblock (its 1024
    bytes), in bytes; None when it is not one. Later groups repeat the pattern. The allocator takes aligned pieces of
    8 MiB, so of each gap only those count: 120 MiB of a group whose tables take 2.

    Layout as in the kernel's Documentation/filesystems/ext4: a group starts with a copy of the superblock and the group
    descriptors (with sparse_super only groups 0, 1 and powers of 3, 5 and 7), then come its bitmaps and inode table;
    with flex_bg the first of 2^n groups holds those of all of them.
    """
    if len(superblock) < 1024 or struct.unpack_from("<H", superblock, 0x38)[0] != _EXT4_MAGIC:
        return None
    blocks_low, first_block, log_block_kib = struct.unpack_from("<4xL12xLL", superblock)
    blocks_per_group, inodes_per_group = struct.unpack_from("<L4xL", superblock, 0x20)
    inode_bytes = struct.unpack_from("<H", superblock, 0x58)[0]
    incompatible, read_only_compatible = struct.unpack_from("<LL", superblock, 0x60)
    reserved_descriptors, descriptor_bytes = struct.unpack_from("<H46xH", superblock, 0xCE)
    blocks_high, log_groups_per_flex = struct.unpack_from("<L32xB", superblock, 0x150)
    if blocks_per_group == 0 or log_block_kib > 6 or log_groups_per_flex > 31:
        return None
    block_bytes = 1024 << log_block_kib
    blocks = blocks_low | (blocks_high << 32 if incompatible & _EXT4_64BIT else 0)
    groups = -(-(blocks - first_block) // blocks_per_group)
    descriptor_bytes = descriptor_bytes if incompatible & _EXT4_64BIT else 32
    copy_blocks = 1 + -(-groups * descriptor_bytes // block_bytes) + reserved_descriptors
    table_blocks = 2 + -(-inodes_per_group * inode_bytes // block_bytes)
    groups_per_table = 1 << log_groups_per_flex if incompatible & _EXT4_FLEX_BG else 1

    piece_blocks = _EXT4_PIECE_BYTES // block_bytes
    longest = gap_start = 0
    for group in range(min(groups, _EXT4_LEADING_GROUPS)):
        start = group * blocks_per_group
        tables = 0
        if not read_only_compatible & _EXT4_SPARSE_SUPER or _has_sparse_copy(group):
            tables += copy_blocks
        if group % groups_per_table == 0:
            tables += table_blocks * min(groups_per_table, groups - group)
        if tables:
            longest = max(longest, start // piece_blocks - -(-gap_start // piece_blocks))
            gap_start = max(gap_start, start + tables)
    end = min(blocks - first_block, groups * blocks_per_group, _EXT4_LEADING_GROUPS * blocks_per_group)
    longest = max(longest, end // piece_blocks - -(-gap_start // piece_blocks))
    return longest * _EXT4_PIECE_BYTES or None


def _has_sparse_copy(group: int) -> bool:
    if group <= 1:
        return True
    return any(_is_power_of(group, base) for base in (3, 5, 7))


def _is_power_of(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1
