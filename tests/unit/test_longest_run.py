"""The longest run of an ext4, from superblocks put together here by the offsets in the kernel's documentation."""

from __future__ import annotations

import struct

import pytest

from coldctl.loader.host.longest_run import ext4_longest_gap_bytes

MIB = 1 << 20
FLEX_BG, BITS_64, SPARSE = 0x200, 0x80, 0x1


def superblock(
    groups: int, *, incompatible: int, sparse: int = SPARSE, inodes_per_group: int = 8192, log_flex: int = 4
) -> bytes:
    """An ext4 of whole groups of 32768 blocks of 4 KiB, 256-byte inodes, no reserved descriptor blocks."""
    image = bytearray(1024)
    struct.pack_into("<LL", image, 0x0, groups * inodes_per_group, groups * 32768)
    struct.pack_into("<LL", image, 0x14, 0, 2)
    struct.pack_into("<L", image, 0x20, 32768)
    struct.pack_into("<L", image, 0x28, inodes_per_group)
    struct.pack_into("<H", image, 0x38, 0xEF53)
    struct.pack_into("<H", image, 0x58, 256)
    struct.pack_into("<LL", image, 0x60, incompatible, sparse)
    struct.pack_into("<H", image, 0xFE, 64)
    image[0x174] = log_flex
    return bytes(image)


def test_without_flex_bg_a_run_ends_with_its_group() -> None:
    """Tables of 2 MiB a group; the allocator starts at the next 8 MiB."""
    assert ext4_longest_gap_bytes(superblock(64, incompatible=BITS_64)) == 120 * MIB


def test_with_flex_bg_a_run_goes_through_to_the_next_flex_group() -> None:
    """Groups 128 to 143 hold no superblock copy (125 is 5^3, 243 is 3^5): 16 groups less 32 MiB of tables and 16 * 2
    bitmap blocks, so less 40 MiB."""
    assert ext4_longest_gap_bytes(superblock(256, incompatible=FLEX_BG | BITS_64)) == (2048 - 40) * MIB


def test_a_small_flex_bg_is_cut_by_superblock_copies() -> None:
    """Sixteen groups, copies in 0, 1, 3, 5, 7 and 9: the longest gap is from group 9 (copy cut to 8 MiB) to the end."""
    assert ext4_longest_gap_bytes(superblock(16, incompatible=FLEX_BG | BITS_64)) == (7 * 128 - 8) * MIB


def test_without_sparse_super_every_group_has_a_copy() -> None:
    assert ext4_longest_gap_bytes(superblock(64, incompatible=FLEX_BG | BITS_64, sparse=0)) == 120 * MIB


@pytest.mark.parametrize("image", [b"", bytes(1024), b"\xff" * 1024])
def test_no_superblock(image: bytes) -> None:
    assert ext4_longest_gap_bytes(image) is None
