"""Whole checkpoints: headers and index together."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from coldctl.errors import EnvironmentLacksError, FaultError, InputError
from coldctl.loader.format.checkpoint import examine, open_checkpoint
from coldctl.results.verify import Finding

INDEX = "model.safetensors.index.json"
NOBODY = 65534


def save(path: Path, *names: str, elements: int = 4) -> int:
    """A file by the safetensors library, with an F32 tensor of `elements` for each name; the bytes of data."""
    safetensors.numpy.save_file({name: np.zeros(elements, np.float32) for name in names}, path)
    return 4 * elements * len(names)


def write_index(folder: Path, weight_map: dict[str, str], total_size: int) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map}))


def write_sharded(folder: Path) -> Path:
    """Shards 1, 2 and 10 of a checkpoint, each with two tensors, and their index."""
    weight_map: dict[str, str] = {}
    total = 0
    for i in (10, 1, 2):
        names = [f"layer.{i}.a", f"layer.{i}.b"]
        total += save(folder / f"s-{i}.safetensors", *names)
        weight_map |= dict.fromkeys(names, f"s-{i}.safetensors")
    write_index(folder, weight_map, total)
    return folder


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_sharded(tmp_path)


@pytest.fixture
def public() -> Iterator[Path]:
    """A checkpoint that every user may read: pytest's own folders and the library's files are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_sharded(Path(name))
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        yield folder


def rules(findings: list[Finding]) -> list[tuple[str, str | None, str | None]]:
    return [(found.rule, found.file, found.tensor) for found in findings]


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read everything, so step down for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_shards_are_in_natural_order_with_their_true_sizes(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    files = [sharded / f"s-{i}.safetensors" for i in (1, 2, 10)]
    assert [(shard.name, shard.path) for shard in checkpoint.shards] == [(file.name, str(file)) for file in files]
    assert [shard.size_bytes for shard in checkpoint.shards] == [file.stat().st_size for file in files]
    for shard, file in zip(checkpoint.shards, files, strict=True):
        status = file.stat()
        assert shard.identity == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    assert checkpoint.bytes == sum(file.stat().st_size for file in files)
    assert len(list(checkpoint.tensors())) == 6
    assert (checkpoint.root, checkpoint.index_name) == (str(sharded), INDEX)
    assert checkpoint.index_metadata == {"total_size": 96}


def test_the_same_by_its_index(sharded: Path) -> None:
    assert open_checkpoint(sharded / INDEX).shards == open_checkpoint(sharded).shards


def test_files_beside_it_are_listed_and_never_read(sharded: Path) -> None:
    (sharded / "consolidated.safetensors").write_bytes(b"junk")
    os.mkfifo(sharded / "pipe.safetensors")
    (sharded / "pytorch_model.bin").write_bytes(b"junk")
    examination = examine(sharded)
    assert rules(examination.findings) == [
        ("folder.ignored", "consolidated.safetensors", None),
        ("folder.ignored", "pipe.safetensors", None),
    ]
    assert examination.checkpoint is not None
    assert examination.checkpoint.ignored == ("consolidated.safetensors", "pipe.safetensors", "pytorch_model.bin")


def test_a_hub_snapshot_of_relative_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save(blobs / "aaaa", "a")
    save(blobs / "bbbb", "b")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_index(blobs, {"a": names[0], "b": names[1]}, 32)
    (blobs / INDEX).rename(blobs / "cccc")
    for name, blob in zip([*names, INDEX], ["aaaa", "bbbb", "cccc"], strict=True):
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    examination = examine(snapshot)
    assert examination.findings == []
    assert examination.checkpoint is not None
    assert [shard.name for shard in examination.checkpoint.shards] == names
    (blobs / "bbbb").unlink()
    assert rules(examine(snapshot).findings) == [("file.dangling-link", names[1], None)]
    with pytest.raises(InputError) as raised:
        open_checkpoint(tmp_path)
    assert "snapshots" in str(raised.value.hint)


def test_every_independent_fault_in_one_run(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    (sharded / "s-2.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 5\n")
    weight_map["gone"] = "s-1.safetensors"
    weight_map["layer.10.a"] = "s-1.safetensors"
    weight_map["far"] = "s-3.safetensors"
    del weight_map["layer.1.b"]
    write_index(sharded, weight_map, 1)
    examination = examine(sharded)
    assert rules(examination.findings) == [
        ("index.missing-shard", "s-3.safetensors", None),
        ("header.length", "s-2.safetensors", None),
        ("index.wrong-shard", INDEX, "layer.10.a"),
        ("index.missing-tensor", INDEX, "gone"),
        ("index.unindexed-tensor", INDEX, "layer.1.b"),
    ]
    assert examination.checkpoint is not None
    assert [shard.name for shard in examination.checkpoint.shards] == ["s-1.safetensors", "s-10.safetensors"]
    assert examine(sharded).findings == examination.findings
    with pytest.raises(FaultError, match="and 4 more faults: run coldctl verify") as raised:
        open_checkpoint(sharded)
    assert (raised.value.rule, raised.value.file) == ("index.missing-shard", "s-3.safetensors")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    save(tmp_path / "m-00001-of-00002.safetensors", "a", "b")
    save(tmp_path / "m-00002-of-00002.safetensors", "b", "c")
    (found,) = examine(tmp_path).findings
    assert (found.rule, found.tensor) == ("folder.duplicate-tensor", "b")
    assert "m-00001-of-00002.safetensors and in m-00002-of-00002.safetensors" in found.message


def test_thousands_of_faults_are_counted(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    write_index(sharded, weight_map | {f"gone.{i}": "s-1.safetensors" for i in range(5000)}, 96)
    findings = examine(sharded).findings
    assert [found.rule for found in findings] == ["index.missing-tensor"] * 100 + ["file.more"]
    assert "4,900 more" in findings[-1].message


def test_no_sound_shard_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    assert examine(tmp_path).checkpoint is None


def test_a_shard_that_may_not_be_read_is_not_called_faulty(public: Path) -> None:
    (public / "s-2.safetensors").chmod(0)
    with as_another_user():
        examination = examine(public)
        with pytest.raises(EnvironmentLacksError, match=r"s-2\.safetensors"):
            open_checkpoint(public)
    assert examination.findings == []
    (unreadable,) = examination.unreadable
    assert "s-2.safetensors" in unreadable
    assert "Permission denied" in unreadable


def test_an_index_that_may_not_be_read(public: Path) -> None:
    (public / INDEX).chmod(0)
    with as_another_user(), pytest.raises(EnvironmentLacksError, match="Permission denied"):
        examine(public)


def test_a_folder_that_may_not_be_listed(public: Path) -> None:
    public.chmod(0)
    try:
        with as_another_user(), pytest.raises(EnvironmentLacksError, match="Permission denied"):
            examine(public)
    finally:
        public.chmod(0o755)
