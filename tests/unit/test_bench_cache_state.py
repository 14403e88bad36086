"""Files made cold and warm for a run; what is resident is asked of util-linux's fincore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.errors import InputError, StoppedError
from coldctl.events import NULL, Events
from coldctl.jobs.bench.cache_state import Prepared, prepare, residency_of
from coldctl.jobs.bench.timelines import cells_of
from tests.filesystems import (
    as_nobody,
    drop,
    fincore_bytes,
    holder,
    in_child,
    loop_filesystem,
    memory_cgroup,
    tmpfs,
    write_synced,
)

pytestmark = pytest.mark.root

MIB = 1 << 20
SIZES = (3 * MIB + 5, 5 * MIB)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        yield filesystem.path


@pytest.fixture
def files(disk: Path) -> Iterator[list[str]]:
    """Two files that are on the disk, and in memory."""
    paths = [disk / f"file-{number}" for number in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        write_synced(path, size)
    yield [str(path) for path in paths]
    for path in paths:
        path.unlink()


def resident(files: list[str]) -> int:
    return sum(fincore_bytes(Path(path)) for path in files)


def test_cold_and_warm_are_had_and_measured(files: list[str]) -> None:
    assert prepare("cold", files, NULL) == Prepared(0, 0, None)
    assert resident(files) == 0
    assert prepare("warm", files, NULL) == Prepared(sum(SIZES), 0, None)
    assert resident(files) >= sum(SIZES)
    assert residency_of(files).resident_bytes == sum(SIZES)


def test_a_file_that_somebody_holds_cannot_be_cold_and_it_is_said_who_holds_it(files: list[str]) -> None:
    with holder(Path(files[1]), "map") as pid:
        prepared = prepare("cold", files, NULL)
    assert prepared.lacks is not None
    assert f"(pid {pid})" in prepared.lacks
    assert "stays in the page cache (mapped by " in prepared.lacks
    assert prepared.resident_bytes is not None
    assert 0.01 * sum(SIZES) <= prepared.resident_bytes <= SIZES[1]


def test_on_tmpfs_there_is_no_cold_but_warm() -> None:
    with tmpfs(16 * MIB) as folder:
        path = folder / "file"
        path.write_bytes(bytes(MIB))
        assert prepare("cold", [str(path)], NULL) == Prepared(
            MIB, 0, "100 % stays in the page cache (pages of tmpfs are the file itself)"
        )
        assert prepare("warm", [str(path)], NULL) == Prepared(MIB, 0, None)


def test_nothing_is_read_that_memory_has_no_room_for(disk: Path) -> None:
    path = disk / "large"
    write_synced(path, 24 * MIB)
    drop(path)
    try:
        with memory_cgroup(16 * MIB) as group:
            prepared = _in_group(group, path)
        assert prepared.lacks is not None
        assert prepared.lacks.startswith("24.0 MiB are not in memory, and ")
        assert fincore_bytes(path) == 0
    finally:
        path.unlink()


def _in_group(group: Path, path: Path) -> Prepared:
    return in_child(
        lambda: prepare("warm", [str(path)], NULL),
        prepare=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
    )


def test_who_may_not_know_what_is_resident_is_told_so_for_files_of_few_pages(files: list[str]) -> None:
    for path in files:
        os.chmod(path, 0o644)
    prepared = as_nobody(lambda: prepare("cold", files, NULL))
    assert prepared.lacks is not None
    assert prepared.lacks.startswith("what is in the page cache is known give or take ")
    assert "the caller neither owns the file nor may write it" in prepared.lacks


def test_it_can_be_stopped_and_missing_files_are_named(files: list[str]) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    for cache in ("cold", "warm"):
        for path in files:
            drop(Path(path))
        with pytest.raises(StoppedError):
            prepare(cache, files, Stopping())
        with pytest.raises(InputError, match="no-such-file"):
            prepare(cache, ["/no-such-file"], NULL)


def test_cells_are_of_file_after_file(files: list[str]) -> None:
    drop(Path(files[0]))
    cells = cells_of(files)
    assert cells == (0.0,) * 64 + (1.0,) * 64


def test_of_many_files_neighbours_share_a_cell(disk: Path) -> None:
    folder = disk / "many"
    folder.mkdir()
    paths = [folder / str(number) for number in range(1024)]
    for path in paths:
        path.write_bytes(b"x")
    os.sync()
    for path in paths[:3]:
        drop(path)
    cells = cells_of([str(path) for path in paths])
    assert cells is not None
    assert cells[:3] == (0.0, 0.5, 1.0)
    assert len(cells) == 512
