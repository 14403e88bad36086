"""Extents on real filesystems, against the tables of filefrag and xfs_bmap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.loader.format.extents import extents
from tests.filesystems import (
    MIB,
    LoopFilesystem,
    as_nobody,
    filefrag_runs,
    fragment,
    loop_filesystem,
    need,
    overlayfs,
    run,
    tmpfs,
    write_synced,
)

pytestmark = pytest.mark.root

KINDS = {
    "ext4": ("ext4",),
    "ext4 without flex_bg": ("ext4", "-O", "^flex_bg"),
    "xfs": ("xfs",),
    "btrfs": ("btrfs",),
}


@pytest.fixture(scope="module", params=KINDS)
def filesystem(request: pytest.FixtureRequest) -> Iterator[LoopFilesystem]:
    kind, *options = KINDS[request.param]
    with loop_filesystem(kind, 1024 * MIB, *options) as made:
        yield made


def test_a_plain_file_is_contiguous(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "plain"
    write_synced(path, 50 * MIB + 123)
    found = extents(str(path))
    runs = filefrag_runs(path)
    assert (found.extents, found.ideal_extents, found.contiguous, found.reason) == (len(runs), 1, True, None)
    if len(runs) == 1:
        assert found.largest_extent_bytes == 50 * MIB + 123  # filefrag counts whole blocks, and what is preallocated
    path.unlink()


def test_a_fragmented_file_is_not(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "fragmented"
    fragment(path, 4 * MIB, 24)
    found = extents(str(path))
    runs = filefrag_runs(path)
    assert len(runs) > 2
    assert (found.extents, found.ideal_extents, found.contiguous) == (len(runs), 1, False)
    path.unlink()


def test_allocated_but_never_written(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "allocated"
    run("fallocate", "--length", f"{64 * MIB}", str(path))
    run("sync", str(path))
    found = extents(str(path))
    assert (found.extents, found.contiguous) == (len(filefrag_runs(path)), True)
    path.unlink()


def test_what_is_allocated_past_the_end_does_not_count(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "past"
    write_synced(path, 4 * MIB)
    run("fallocate", "--keep-size", "--offset", f"{4 * MIB}", "--length", f"{32 * MIB}", str(path))
    run("sync", str(path))
    found = extents(str(path))
    assert found.contiguous
    assert found.largest_extent_bytes is not None
    assert found.largest_extent_bytes <= 4 * MIB
    path.unlink()


def test_a_hole_is_said(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "sparse"
    with path.open("wb") as file:
        file.write(os.urandom(MIB))
        file.seek(3 * MIB)
        file.write(os.urandom(MIB))
        file.truncate(6 * MIB)
        os.fsync(file.fileno())
    found = extents(str(path))
    assert (found.ideal_extents, found.contiguous) == (None, None)
    assert found.reason == "sparse: 4.0 MiB of the file have no place on the disk"
    path.unlink()


def test_only_a_hole(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "hole"
    with path.open("wb") as file:
        file.truncate(6 * MIB)
    found = extents(str(path))
    assert (found.extents, found.contiguous, found.largest_extent_bytes) == (0, None, 0)
    path.unlink()


def test_an_empty_file(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "empty"
    path.touch()
    found = extents(str(path))
    assert (found.extents, found.ideal_extents, found.contiguous, found.reason) == (0, 0, True, None)
    path.unlink()


def test_not_written_yet(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "dirty"
    with path.open("wb") as file:
        file.write(os.urandom(4 * MIB))
        file.flush()
        found = extents(str(path))
        assert (found.extents, found.contiguous, found.reason) == (None, None, "not written to disk yet")
        os.fsync(file.fileno())
    assert extents(str(path)).contiguous
    path.unlink()


def test_anybody_may_ask(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "public"
    write_synced(path, 4 * MIB)
    path.chmod(0o644)
    as_root = extents(str(path))
    found = as_nobody(lambda: extents(str(path)))
    assert (found.extents, found.contiguous) == (as_root.extents, True)
    path.unlink()


@pytest.mark.parametrize(
    ("options", "ideal"),
    [
        ((), 1),  # 2 GiB have 16 groups; the longest gap is from group 9 to the end, 888 MiB
        (("-O", "^flex_bg"), 5),  # 500 MiB of 120 each
    ],
)
def test_the_ideal_of_ext4_is_what_its_groups_allow(options: tuple[str, ...], ideal: int) -> None:
    with loop_filesystem("ext4", 2048 * MIB, *options) as filesystem:
        path = filesystem.path / "large"
        run("fallocate", "--length", f"{500 * MIB}", str(path))
        run("sync", str(path))
        runs = filefrag_runs(path)
        found = extents(str(path))
        assert (found.extents, found.ideal_extents, found.contiguous) == (len(runs), ideal, True)
        assert len(runs) >= ideal
        if "^flex_bg" in options:
            assert max(runs) == 120 * MIB
            path.chmod(0o644)
            assert as_nobody(lambda: extents(str(path))).ideal_extents == 5  # without reading the superblock


def test_the_ideal_of_xfs_is_its_allocation_group() -> None:
    with loop_filesystem("xfs", 1024 * MIB, "-d", "agcount=4") as filesystem:
        path = filesystem.path / "large"
        run("fallocate", "--length", f"{600 * MIB}", str(path))
        run("sync", str(path))
        found = extents(str(path))
        assert (found.extents, found.ideal_extents, found.contiguous) == (_bmap_runs(path), 3, True)


def test_the_ideal_of_btrfs_is_a_tenth_of_a_small_device() -> None:
    with loop_filesystem("btrfs", 1000 * MIB) as filesystem:
        path = filesystem.path / "large"
        run("fallocate", "--length", f"{350 * MIB}", str(path))
        run("sync", str(path))
        found = extents(str(path))
        assert (found.extents, found.ideal_extents) == (len(filefrag_runs(path)), 4)


def test_more_extents_than_one_question_brings() -> None:
    """1200 clones of single blocks in reverse order, so none is adjacent to the next; the kernel is asked for 512."""
    pieces, block = 1200, 4096
    with loop_filesystem("xfs", 512 * MIB) as filesystem:
        source, path = filesystem.path / "source", filesystem.path / "reversed"
        write_synced(source, pieces * block)
        with source.open("rb") as read, path.open("wb") as written:
            for piece in range(pieces):
                offset = (pieces - 1 - piece) * block
                assert os.copy_file_range(read.fileno(), written.fileno(), block, offset, piece * block) == block
            os.fsync(written.fileno())
        found = extents(str(path))
        assert _bmap_runs(path) == pieces
        assert (found.extents, found.contiguous, found.largest_extent_bytes) == (pieces, False, block)


def test_compressed_is_not_judged() -> None:
    with loop_filesystem("btrfs", 512 * MIB, mount="compress-force=zstd") as filesystem:
        path = filesystem.path / "compressed"
        write_synced(path, 20 * MIB, byte=b"x")
        found = extents(str(path))
        assert len(filefrag_runs(path)) > 100
        assert (found.extents, found.ideal_extents, found.contiguous) == (None, None, None)
        assert found.reason == "compressed or encrypted by the filesystem"


def test_ext3_has_no_known_ideal() -> None:
    with loop_filesystem("ext3", 512 * MIB) as filesystem:
        path = filesystem.path / "file"
        write_synced(path, 20 * MIB)
        found = extents(str(path))
        assert (found.extents, found.ideal_extents, found.contiguous) == (len(filefrag_runs(path)), None, None)
        assert found.reason == "not known how few extents ext3 can do"


def test_overlayfs_passes_the_extents_through_but_not_the_ideal() -> None:
    with loop_filesystem("ext4", 512 * MIB) as filesystem:
        write_synced(filesystem.path / "file", 20 * MIB)
        with overlayfs(filesystem.path) as overlay:
            found = extents(str(overlay / "file"))
            assert (found.extents, found.ideal_extents) == (len(filefrag_runs(filesystem.path / "file")), None)
            assert found.reason == "not known how few extents overlay can do"


def test_tmpfs_has_no_extents() -> None:
    with tmpfs(64 * MIB) as folder:
        write_synced(folder / "file", MIB)
        found = extents(str(folder / "file"))
        assert (found.extents, found.reason) == (None, "tmpfs tells no extents")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="folder"):
        extents(str(tmp_path))


def _bmap_runs(path: Path) -> int:
    """The physically adjacent runs in xfs_bmap's table, whose ranges are in 512-byte blocks, ends included."""
    need("xfs_bmap")
    runs, expected = 0, -1
    for line in run("xfs_bmap", str(path)).splitlines()[1:]:
        start, end = map(int, line.split(": ")[2].split(".."))
        runs += start != expected
        expected = end + 1
    return runs
