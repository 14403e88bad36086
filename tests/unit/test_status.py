"""status through its Python API: sizes, residency, extents and alignment, file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.errors import FaultError, InputError, StoppedError
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.status import StatusOptions, status
from tests.filesystems import drop, filefrag_runs, fincore_bytes, loop_filesystem, run
from tests.tiny import made, read_shard, snapshot, write_shard, write_sharded

MIB = 1 << 20


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        yield filesystem.path


@pytest.mark.root
def test_each_file_is_shown_as_it_lies_and_as_it_is_warm(disk: Path) -> None:
    folder = disk / "model"
    paths = write_sharded(folder, [{"a": made("U8", 8 * MIB)}, {"b": made("U8", 4096), "c": made("U8", 5)}])
    run("sync", *map(str, paths))
    drop(paths[0])
    run("vmtouch", "-qt", "-p", "0-4M", str(paths[0]))
    warm_bytes = fincore_bytes(paths[0])
    result = status(StatusOptions(str(folder)))
    first, second = result.files
    assert (first.path, first.size_bytes, first.tensors) == (paths[0].name, paths[0].stat().st_size, 1)
    assert first.resident_bytes == warm_bytes
    assert first.residency_map is not None
    assert len(first.residency_map) == 32
    # The first half is warm; read-ahead may have brought a little more.
    assert all(share == 1 for share in first.residency_map[:15])
    assert all(share == 0 for share in first.residency_map[20:])
    assert first.extents == len(filefrag_runs(paths[0]))
    assert first.contiguous
    assert second.resident_bytes == second.size_bytes
    # One cell for each page, when there are fewer pages than cells.
    assert second.residency_map == [1.0, 1.0]
    assert (result.bytes, result.tensors, result.filesystem) == (sum(p.stat().st_size for p in paths), 3, "ext4")
    assert result.resident_bytes == warm_bytes + second.size_bytes
    assert fincore_bytes(paths[0]) == warm_bytes


def test_alignment_is_counted_without_fillers(tmp_path: Path) -> None:
    tensors = {"page": made("U8", 8192), "odd": made("U8", 5), "odder": made("U8", 6)}
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    (before,) = status(StatusOptions(str(tmp_path / "source"))).files
    assert (before.aligned_tensors, before.aligned_bytes, before.tensors) == (0, 0, 3)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target"), align="every"))
    assert len(read_shard(tmp_path / "target" / "model.safetensors")) == 4
    (after,) = status(StatusOptions(str(tmp_path / "target"))).files
    assert (after.aligned_tensors, after.aligned_bytes, after.tensors) == (3, 8203, 3)


def test_the_manifest_and_ignored_files_are_told(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5)})
    result = status(StatusOptions(str(tmp_path)))
    assert (result.manifest, result.ignored) == (False, [])
    (tmp_path / "coldctl.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "extra.safetensors").write_bytes(b"")
    result = status(StatusOptions(str(tmp_path)))
    assert (result.manifest, result.ignored) == (True, ["extra.safetensors", "pytorch_model.bin"])


def test_looking_changes_nothing(tmp_path: Path) -> None:
    write_sharded(tmp_path, [{"a": made("U8", 5000)}, {"b": made("U8", 0)}])
    before = snapshot(tmp_path)
    status(StatusOptions(str(tmp_path)))
    assert snapshot(tmp_path) == before


def test_an_empty_file_set_is_shown(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {})
    (file,) = status(StatusOptions(str(tmp_path))).files
    assert (file.tensors, file.size_bytes) == (0, 10)


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        status(StatusOptions(str(tmp_path / "nowhere")))
    with pytest.raises(InputError):
        status(StatusOptions(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 7)
    with pytest.raises(FaultError) as caught:
        status(StatusOptions(str(tmp_path)))
    assert caught.value.rule == "header.too-short"


def test_looking_can_be_stopped(tmp_path: Path) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5)})
    with pytest.raises(StoppedError):
        status(StatusOptions(str(tmp_path)), Stopping())


def test_a_checkpoint_named_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5)})
    monkeypatch.chdir(tmp_path)
    for path in (".", "model.safetensors", os.path.join("..", tmp_path.name)):
        assert status(StatusOptions(path)).tensors == 1
