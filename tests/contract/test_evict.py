"""Evicting on real filesystems, checked with fincore, with every kind of holder that can be made here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.loader.pages.evict import evict
from tests.filesystems import (
    MIB,
    PAGE,
    LoopFilesystem,
    as_nobody,
    fincore_bytes,
    holder,
    loop_filesystem,
    overlayfs,
    tmpfs,
    write_synced,
)

pytestmark = pytest.mark.root
SIZE = 8 * MIB + 123


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def filesystem(request: pytest.FixtureRequest) -> Iterator[LoopFilesystem]:
    with loop_filesystem(request.param, 512 * MIB) as made:
        write_synced(made.path / "file", SIZE)
        (made.path / "file").chmod(0o644)
        yield made


@pytest.fixture
def warm(filesystem: LoopFilesystem) -> Path:
    path = filesystem.path / "file"
    path.read_bytes()
    assert fincore_bytes(path) == SIZE - 123 + PAGE
    return path


def test_all_goes_the_last_page_too(warm: Path) -> None:
    found = evict(str(warm))
    assert (found.stayed_bytes, found.reasons, found.residency.resident_bytes) == (0, (), 0)
    assert fincore_bytes(warm) == 0


def test_dirty_pages_are_written_first(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "dirty"
    data = os.urandom(16 * MIB)
    path.write_bytes(data)
    assert evict(str(path)).stayed_bytes == 0
    assert fincore_bytes(path) == 0
    assert path.read_bytes() == data
    path.unlink()


@pytest.mark.parametrize(("how", "words"), [("map", "mapped by"), ("lock", "mapped and locked in memory by")])
def test_who_holds_pages_is_named(warm: Path, how: str, words: str) -> None:
    with holder(warm, how) as pid:
        found = evict(str(warm))
        assert found.stayed_bytes is not None
        assert 4 * MIB <= found.stayed_bytes <= SIZE
        assert len(found.reasons) == 1
        assert found.reasons[0].startswith(words)
        assert found.reasons[0].endswith(f"(pid {pid})")
    assert evict(str(warm)).stayed_bytes == 0


def test_any_reader_may_evict_but_learns_only_an_estimate(warm: Path) -> None:
    found = as_nobody(lambda: evict(str(warm)))
    assert found.residency.method == "sampled"
    assert found.stayed_bytes is not None
    assert found.stayed_bytes <= SIZE // 50
    assert fincore_bytes(warm) <= 400 * PAGE  # what the estimate itself has read


def test_through_overlayfs(filesystem: LoopFilesystem) -> None:
    path = filesystem.path / "file"
    with overlayfs(filesystem.path) as overlay:
        shown = overlay / "file"
        shown.read_bytes()
        assert fincore_bytes(path) > SIZE
        with holder(shown, "map") as pid:
            found = evict(str(shown))
            assert found.stayed_bytes
            assert f"(pid {pid})" in found.reasons[0]
        assert evict(str(shown)).stayed_bytes == 0
        assert fincore_bytes(path) == 0


def test_tmpfs_keeps_everything() -> None:
    with tmpfs(64 * MIB) as folder:
        path = folder / "file"
        write_synced(path, SIZE)
        found = evict(str(path))
        assert (found.stayed_bytes, found.reasons) == (SIZE, ("pages of tmpfs are the file itself",))
        assert fincore_bytes(path) >= SIZE


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert evict(str(tmp_path / "empty")).stayed_bytes == 0


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        evict(str(tmp_path / "absent"))
