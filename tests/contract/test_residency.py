"""Residency on real filesystems, against util-linux's fincore run as root."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.loader.pages.residency import max_error, measure
from tests.filesystems import (
    MIB,
    PAGE,
    LoopFilesystem,
    as_nobody,
    drop,
    fincore_bytes,
    loop_filesystem,
    overlayfs,
    tmpfs,
    write_synced,
)

root = pytest.mark.root
SIZE = 16 * MIB + 123


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def filesystem(request: pytest.FixtureRequest) -> Iterator[LoopFilesystem]:
    with loop_filesystem(request.param, 512 * MIB) as made:
        path = made.path / "file"
        write_synced(path, SIZE)
        path.chmod(0o644)
        yield made


@pytest.fixture
def cold(filesystem: LoopFilesystem) -> Path:
    path = filesystem.path / "file"
    drop(path)
    assert fincore_bytes(path) == 0
    return path


def read(path: Path, offset: int, nbytes: int) -> None:
    """Read exactly these pages, without read-ahead."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(fd, nbytes, offset)) == nbytes
    os.close(fd)


@root
def test_cold_partly_warm_and_warm(cold: Path) -> None:
    found = measure(str(cold), cells=4)
    assert (found.resident_bytes, found.method, found.missing) == (0, "mincore", [(0, SIZE)])
    assert found.cells == [0, 0, 0, 0]

    read(cold, 0, 4 * PAGE)
    read(cold, 10 * PAGE, 2 * PAGE)
    read(cold, SIZE - 123, 123)
    found = measure(str(cold))
    assert fincore_bytes(cold) == 7 * PAGE
    assert found.resident_bytes == 6 * PAGE + 123
    assert found.missing == [(4 * PAGE, 6 * PAGE), (12 * PAGE, SIZE - 123 - 12 * PAGE)]
    assert found.cells is None

    cold.read_bytes()
    found = measure(str(cold), cells=3)
    assert (found.resident_bytes, found.missing, found.cells) == (SIZE, [], [1, 1, 1])


@root
def test_cells_are_equal_parts_of_the_file(cold: Path) -> None:
    read(cold, 0, 2 * MIB)
    read(cold, 8 * MIB, 8 * MIB)
    found = measure(str(cold), cells=4)
    quarter = SIZE / 4
    assert found.cells is not None
    assert found.cells == pytest.approx([2 * MIB / quarter, 0, 1, 1], abs=1e-4)


@root
def test_another_user_gets_an_estimate_and_not_the_lie(cold: Path) -> None:
    found = as_nobody(lambda: measure(str(cold)))
    assert (found.method, found.missing) == ("sampled", None)
    assert found.resident_bytes is not None
    assert found.resident_bytes <= SIZE // 100  # a page that the question itself has read in time counts as a hit
    assert found.reason == "the caller neither owns the file nor may write it, so mincore would not tell"
    assert 0 < found.bound_bytes <= SIZE // 40
    assert fincore_bytes(cold) <= 400 * PAGE  # each question that misses reads one page, and no more

    cold.read_bytes()
    found = as_nobody(lambda: measure(str(cold)))
    assert (found.resident_bytes, found.method) == (SIZE, "sampled")
    assert found.bound_bytes == math.ceil(SIZE * max_error(400, 400))


@root
def test_an_estimate_of_a_half_warm_file_is_within_its_bound(cold: Path) -> None:
    read(cold, 0, 8 * MIB)
    found = as_nobody(lambda: measure(str(cold)))
    assert found.resident_bytes is not None
    assert abs(found.resident_bytes - 8 * MIB) <= found.bound_bytes


@root
def test_a_user_who_may_write_gets_the_truth(cold: Path) -> None:
    cold.chmod(0o666)
    try:
        found = as_nobody(lambda: measure(str(cold)))
    finally:
        cold.chmod(0o644)
    assert (found.resident_bytes, found.method) == (0, "mincore")


@root
def test_the_owner_of_a_read_only_file_gets_the_truth(cold: Path) -> None:
    os.chown(cold, 65534, 65534)
    cold.chmod(0o444)
    try:
        found = as_nobody(lambda: measure(str(cold)))
    finally:
        os.chown(cold, 0, 0)
        cold.chmod(0o644)
    assert (found.resident_bytes, found.method) == (0, "mincore")


@root
def test_overlayfs_tells_of_the_file_below() -> None:
    with loop_filesystem("ext4", 256 * MIB) as lower:
        path = lower.path / "file"
        write_synced(path, 4 * MIB)
        path.chmod(0o644)
        drop(path)
        with overlayfs(lower.path) as overlay:
            shown = overlay / "file"
            assert measure(str(shown)).resident_bytes == 0
            read(shown, 0, MIB)
            assert measure(str(shown)).resident_bytes == MIB == fincore_bytes(path)
            found = as_nobody(lambda: measure(str(shown)))
            assert (found.resident_bytes, found.method, found.missing) == (None, None, None)
            assert found.reason is not None
            assert "answers no reads without waiting" in found.reason


@root
def test_tmpfs_is_resident() -> None:
    with tmpfs(64 * MIB) as folder:
        path = folder / "file"
        write_synced(path, 4 * MIB)
        path.chmod(0o644)
        assert measure(str(path)).resident_bytes == 4 * MIB
        assert as_nobody(lambda: measure(str(path))).resident_bytes is None


@root
def test_more_than_one_window() -> None:
    """A sparse file of 2.5 GiB, of which 1 MiB around the border between two windows of 1 GiB was read."""
    with loop_filesystem("xfs", 512 * MIB) as made:
        path, size = made.path / "sparse", 2560 * MIB
        with path.open("wb") as file:
            file.truncate(size)
        read(path, 1024 * MIB - 512 * 1024, MIB)
        found = measure(str(path))
        start, end = 1024 * MIB - 512 * 1024, 1024 * MIB + 512 * 1024
        assert found.missing == [(0, start), (end, size - end)]
        drop(path)
        assert measure(str(path)).missing == [(0, size)]


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    found = measure(str(path), cells=8)
    assert (found.resident_bytes, found.missing, found.cells) == (0, [], [])


def test_fewer_pages_than_cells(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * (2 * PAGE))
    assert measure(str(path), cells=8).cells == [1, 1]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        measure(str(tmp_path / "pipe"))


def test_bound_when_all_samples_agree() -> None:
    """With n hits of n the excluded shares are those with p^n < 2.5 %."""
    for samples in (1, 10, 400):
        assert max_error(samples, samples) == pytest.approx(1 - 0.025 ** (1 / samples))
        assert max_error(0, samples) == pytest.approx(1 - 0.025 ** (1 / samples))


@pytest.mark.parametrize(("hits", "samples"), [(1, 10), (5, 10), (37, 400), (200, 400), (399, 400)])
def test_bound_holds_in_the_binomial_distribution(hits: int, samples: int) -> None:
    """At the edges of the bound such a count, or a more extreme one, has a chance of at most 2.5 %, summed exactly."""
    error = max_error(hits, samples)
    share = hits / samples

    def chance(counts: range, p: float) -> float:
        return sum(math.comb(samples, k) * p**k * (1 - p) ** (samples - k) for k in counts)

    if share + error < 1:
        assert chance(range(hits + 1), share + error) <= 0.025
    if share - error > 0:
        assert chance(range(hits, samples + 1), share - error) <= 0.025
