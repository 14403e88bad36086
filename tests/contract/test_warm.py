"""Warming on real filesystems: what comes in, as fincore counts it, and what is said of blocks that cannot be read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.loader import syscalls
from coldctl.loader.host.budget import budget
from coldctl.loader.host.memory import rss_anon_bytes
from coldctl.loader.pages.residency import measure
from coldctl.loader.pages.warm import PageReader, PopulateReader, PreadReader, choose_reader
from tests.filesystems import (
    MIB,
    PAGE,
    LoopFilesystem,
    drop,
    fincore_bytes,
    in_child,
    loop_filesystem,
    memory_cgroup,
    overlayfs,
    tmpfs,
    write_synced,
)

pytestmark = pytest.mark.root
SIZE = 40 * MIB + 123


@pytest.fixture(params=[PopulateReader, PreadReader])
def reader(request: pytest.FixtureRequest) -> PageReader:
    if request.param is PopulateReader and not syscalls.populate_read_supported():
        pytest.skip("the kernel has no MADV_POPULATE_READ (it came with Linux 5.14)")
    made: PageReader = request.param()
    return made


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def filesystem(request: pytest.FixtureRequest) -> Iterator[LoopFilesystem]:
    with loop_filesystem(request.param, 512 * MIB) as made:
        write_synced(made.path / "file", SIZE)
        yield made


def warm(reader: PageReader, path: Path, offset: int, nbytes: int) -> list[tuple[int, int, str]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return reader.read(fd, offset, nbytes)
    finally:
        os.close(fd)


def warm_until(reader: PageReader, path: Path, nbytes: int, resident_bytes: int) -> list[tuple[int, int, str]]:
    """Warm the file until `resident_bytes` of it are there, and return the failures of the last time.

    Once is enough, but for a kernel that reclaims idle pages on its own (DAMON) and may have taken some at once.
    """
    for _ in range(5):
        failed = warm(reader, path, 0, nbytes)
        if fincore_bytes(path) == resident_bytes:
            return failed
    raise AssertionError(f"{fincore_bytes(path)} bytes are resident, not {resident_bytes}; failed: {failed}")


def test_a_whole_file(filesystem: LoopFilesystem, reader: PageReader) -> None:
    path = filesystem.path / "file"
    drop(path)
    assert warm_until(reader, path, SIZE, SIZE - 123 + PAGE) == []


def test_a_range_that_begins_and_ends_inside_pages(filesystem: LoopFilesystem, reader: PageReader) -> None:
    path = filesystem.path / "file"
    drop(path)
    assert warm(reader, path, 20 * MIB + 100, 18 * MIB) == []
    missing = measure(str(path)).missing
    assert missing is not None
    wanted_start, wanted_end = 20 * MIB + 100, 38 * MIB + 100
    assert all(offset + length <= wanted_start or offset >= wanted_end for offset, length in missing)
    assert missing[0][0] == 0


def test_overlayfs_and_tmpfs(reader: PageReader) -> None:
    with loop_filesystem("ext4", 256 * MIB) as lower:
        path = lower.path / "file"
        write_synced(path, 8 * MIB)
        drop(path)
        with overlayfs(lower.path) as overlay:
            assert warm(reader, overlay / "file", 0, 8 * MIB) == []
            assert fincore_bytes(path) == 8 * MIB
    with tmpfs(64 * MIB) as folder:
        write_synced(folder / "file", MIB)
        assert warm(reader, folder / "file", 0, MIB) == []


def test_a_file_that_shrank(filesystem: LoopFilesystem, reader: PageReader) -> None:
    path = filesystem.path / "shrunk"
    write_synced(path, 6 * PAGE + 10)
    assert warm(reader, path, 0, 20 * MIB) == [
        (6 * PAGE + 10, 20 * MIB - 6 * PAGE - 10, f"the file ends at byte {6 * PAGE + 10}")
    ]
    path.unlink()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_unreadable_from_a_block_on(kind: str, reader: PageReader) -> None:
    """The cut is in the middle of what the kernel reads as one folio, and of a window; the page before it is good."""
    bad = 21 * MIB + 3 * PAGE
    with loop_filesystem(kind, 512 * MIB) as made:
        path = made.path / "file"
        write_synced(path, SIZE)
        made.make_unreadable(path, bad)
        assert warm_until(reader, path, SIZE, bad) == [(bad, SIZE - bad, os.strerror(5))]
        assert warm(reader, path, bad + 10, 100) == [(bad + 10, 100, os.strerror(5))]
        assert warm(reader, path, 0, bad) == []


def test_unreadable_in_the_middle(reader: PageReader) -> None:
    """The middle of the file is a clone of what lies last on the device, where the image is cut."""
    with loop_filesystem("xfs", 512 * MIB) as made:
        source, path = made.path / "source", made.path / "file"
        write_synced(source, 40 * MIB)
        with source.open("rb") as read, path.open("wb") as written:
            for start, nbytes in ((0, 10), (36, 4), (10, 10)):
                got = os.copy_file_range(
                    read.fileno(), written.fileno(), nbytes * MIB, start * MIB, written.seek(0, os.SEEK_END)
                )
                assert got == nbytes * MIB
            os.fsync(written.fileno())
        made.make_unreadable(path, 11 * MIB)
        assert warm_until(reader, path, 24 * MIB, 21 * MIB) == [(11 * MIB, 3 * MIB, os.strerror(5))]


def test_one_corrupt_block(reader: PageReader) -> None:
    bad = 20 * MIB + 7 * PAGE
    with loop_filesystem("btrfs", 512 * MIB) as made:
        path = made.path / "file"
        write_synced(path, 24 * MIB)
        made.corrupt(path, bad)
        assert warm_until(reader, path, 24 * MIB, 24 * MIB - PAGE) == [(bad, PAGE, os.strerror(5))]


def test_many_threads_share_a_reader_and_a_descriptor(filesystem: LoopFilesystem, reader: PageReader) -> None:
    path = filesystem.path / "file"
    drop(path)
    failed: list[tuple[int, int, str]] = []
    fd = os.open(path, os.O_RDONLY)
    threads = [
        threading.Thread(target=lambda start: failed.extend(reader.read(fd, start, MIB)), args=(start,))
        for start in range(0, 40 * MIB, MIB)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    assert failed == []
    assert fincore_bytes(path) >= 40 * MIB


def test_memory_does_not_grow_with_the_file(filesystem: LoopFilesystem, reader: PageReader) -> None:
    path = filesystem.path / "file"
    drop(path)
    warm(reader, path, 0, PAGE)
    before = rss_anon_bytes()
    warm(reader, path, 0, SIZE)
    assert rss_anon_bytes() - before < 4 * MIB


def test_choose_reader_takes_what_the_kernel_has() -> None:
    assert choose_reader(".").name == ("populate" if syscalls.populate_read_supported() else "pread")


def test_budget_inside_a_real_cgroup(filesystem: LoopFilesystem) -> None:
    """A limit of 200 MiB: a tenth is kept, and page cache that was read there does not count as used."""
    path = filesystem.path / "file"
    drop(path)
    with memory_cgroup(200 * MIB) as folder:

        def enter() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        def look() -> tuple[int, int, int, int | None, str]:
            before = budget()
            assert warm(choose_reader(str(path)), path, 0, SIZE) == []
            used = int((folder / "memory.usage_in_bytes").read_text())
            return used, before.headroom_bytes, budget().headroom_bytes, before.limit_bytes, before.limited_by

        used, before, after, limit, limited_by = in_child(look, prepare=enter)
    assert (limit, limited_by) == (200 * MIB, str(folder))
    assert used >= SIZE
    assert 180 * MIB <= before <= 200 * MIB
    assert 180 * MIB <= after <= 200 * MIB
