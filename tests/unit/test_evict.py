"""evict through its Python API: only the shards' pages go, and what stays is named with the reason."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.errors import InputError
from coldctl.jobs.evict import EvictOptions, evict
from tests.filesystems import fincore_bytes, loop_filesystem, run, tmpfs
from tests.tiny import made, write_sharded

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        yield filesystem.path


@pytest.fixture
def warm(disk: Path) -> Iterator[list[Path]]:
    """Two files of 2 MiB in memory, just written, and a sidecar that is no business of evict's."""
    folder = disk / "model"
    folder.mkdir()
    paths = write_sharded(folder, [{"a": made("U8", 2 * MIB)}, {"b": made("U8", 2 * MIB)}])
    (folder / "tokenizer.json").write_bytes(b"x" * MIB)
    yield paths
    shutil.rmtree(folder)


def test_the_shards_leave_memory_and_nothing_else_does(warm: list[Path]) -> None:
    size = sum(path.stat().st_size for path in warm)
    result = evict(EvictOptions(str(warm[0].parent)))
    assert [fincore_bytes(path) for path in warm] == [0, 0]
    assert fincore_bytes(warm[0].parent / "tokenizer.json") == MIB
    assert result.bytes == result.resident_before_bytes == size
    assert (result.resident_after_bytes, result.complete) == (0, True)
    assert (result.kept, result.failed, result.read_bytes, result.reader) == ([], [], 0, None)
    assert result.residency_method == "mincore"


def test_what_was_dirty_is_on_the_disk_afterwards(warm: list[Path]) -> None:
    before = warm[0].read_bytes()
    evict(EvictOptions(str(warm[0])))
    run("mount", "-o", "remount", str(warm[0].parent.parent))
    assert warm[0].read_bytes() == before


def test_one_file_alone_can_be_evicted(warm: list[Path]) -> None:
    result = evict(EvictOptions(str(warm[0])))
    assert result.bytes == warm[0].stat().st_size
    assert fincore_bytes(warm[0]) == 0
    assert fincore_bytes(warm[1]) > 2 * MIB


def test_a_dry_run_leaves_everything(warm: list[Path]) -> None:
    result = evict(EvictOptions(str(warm[0].parent), dry_run=True))
    assert result.dry_run
    assert result.resident_before_bytes == result.resident_after_bytes == result.bytes
    assert not result.complete
    assert all(fincore_bytes(path) > 2 * MIB for path in warm)


def test_pages_that_somebody_maps_stay_and_the_process_is_named(warm: list[Path]) -> None:
    with warm[1].open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) >= 0
        result = evict(EvictOptions(str(warm[0].parent)))
    assert not result.complete
    assert result.resident_after_bytes is not None
    assert result.resident_after_bytes >= 2 * MIB
    (kept,) = result.kept
    assert kept.path == warm[1].name
    assert "mapped by" in kept.reason
    assert fincore_bytes(warm[0]) == 0


def test_on_tmpfs_the_pages_are_the_file() -> None:
    with tmpfs(16 * MIB) as folder:
        paths = write_sharded(folder, [{"a": made("U8", MIB)}])
        before = paths[0].read_bytes()
        result = evict(EvictOptions(str(folder)))
        assert paths[0].read_bytes() == before
    assert not result.complete
    assert [kept.reason for kept in result.kept] == ["1.0 MiB: pages of tmpfs are the file itself"]


def test_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        evict(EvictOptions(str(tmp_path / "nowhere")))
