"""Loads to host memory, against the safetensors library: every option gives the same tensors, or a share of them."""

from __future__ import annotations

import copy
import gc
import hashlib
import itertools
import json
import pickle
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import coldctl
from coldctl.errors import ChangedError, FaultError, InputError, UsageError
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.latch import Latch
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.opened import OpenCheckpoint
from coldctl.results.load import LoadReport
from tests.cli.process import run_python
from tests.loads import (
    MIB,
    PATIENCE_SECONDS,
    assert_given_back,
    assert_same,
    assert_same_as_the_files,
    bits,
    footprint,
    library,
    save,
    save_mixed,
)
from tests.tiny import Made, made, read_folder, read_shard, write_shard

EDGES = ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.fixture
def checkpoint(folder: Path) -> Iterator[OpenCheckpoint]:
    with coldctl.open(folder) as opened:
        yield opened


@pytest.mark.parametrize("framework", ["torch", "numpy", "auto"])
@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_every_allocation_gives_what_the_library_gives(
    checkpoint: OpenCheckpoint, folder: Path, expected: dict[str, torch.Tensor], alloc: Any, framework: Any
) -> None:
    loaded = checkpoint.load("cpu", alloc=alloc, framework=framework)
    assert all(isinstance(tensor, np.ndarray if framework == "numpy" else torch.Tensor) for tensor in loaded.values())
    assert_same(loaded, expected)
    assert_same_as_the_files(loaded, folder)
    assert loaded.report.alloc == alloc


@pytest.mark.parametrize("order", ["file", "name", "layers", "attention-first"])
@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_every_order_gives_all_tensors_in_it(
    checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor], order: Any, alloc: Any
) -> None:
    loaded = checkpoint.load(order=order, alloc=alloc)
    assert_same(loaded, expected)
    names = list(loaded)
    if order == "name":
        assert [name for name in names if name.startswith("odd")] == sorted(n for n in names if n.startswith("odd"))
    elif order == "file":
        assert names[0] == "model.embed_tokens.weight"
        assert names[-1] == "nothing"
    elif order == "layers":
        numbers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
        assert numbers == sorted(numbers)
        assert set(names[-2:]) == {"lm_head.weight", "model.norm.weight"}
    else:
        attention = ["self_attn" in name for name in names]
        assert attention == sorted(attention, reverse=True)
        assert sum(attention) == 12
    assert loaded.report.order == order


def test_buffered_reads_give_the_same(checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor]) -> None:
    loaded = checkpoint.load(mode="buffered")
    assert_same(loaded, expected)
    assert (loaded.report.mode, loaded.report.reason, loaded.report.direct_bytes) == ("buffered", "as asked for", 0)


def test_embedding_and_head_come_last_where_that_is_asked_for(
    checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor]
) -> None:
    loaded = checkpoint.load(edges_last=True)
    assert list(loaded)[-2:] == EDGES
    assert_same(loaded, expected)
    assert [name for name in checkpoint.load() if name not in EDGES] == list(loaded)[:-2]


def test_only_the_named_tensors_are_loaded_and_read(
    checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor]
) -> None:
    names = ["odd.float8", "model.norm.weight", "nothing"]
    loaded = checkpoint.load(names=(name for name in names))
    assert_same(loaded, {name: expected[name] for name in names})
    assert loaded.report.read_bytes == 33 * 7 + 64 * 2
    assert checkpoint.load(names=[]) == {}
    with pytest.raises(InputError, match="2 of the tensors that were asked for are not there: gone, lost") as caught:
        checkpoint.load(names=["gone", "odd.byte", "lost"])
    assert "exact" in str(caught.value.hint)
    with pytest.raises(InputError, match=r"1 of the tensors .*: odd\.\*") as caught:
        checkpoint.load(names=["odd.*"])
    assert "no patterns" in str(caught.value.hint)


def test_names_are_taken_from_each_share(checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor]) -> None:
    """A name that another device has is no mistake, and an iterator of names serves all devices."""
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    first, last = checkpoint.load(devices=["cpu", "cpu"], split="stage", names=iter(names))
    assert_same(first, {names[0]: expected[names[0]]})
    assert_same(last, {names[1]: expected[names[1]]})
    norm = "model.norm.weight"
    for each in checkpoint.load(devices=["cpu", "cpu"], split="tp", names=[norm]):
        assert_same(each, {norm: expected[norm]})
        assert each.report.replicated == (norm,)


def tp_part(name: str, tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's part of the tensors of `save_mixed`, by hand."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    if module in {"o_proj", "down_proj", "w2"}:
        return tensor.chunk(ranks, dim=1)[rank]
    if module in {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "embed_tokens", "lm_head"}:
        return tensor.chunk(ranks, dim=0)[rank]
    return tensor


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("alloc", ["arena", "per-tensor"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_ranks_get_their_rows_and_columns(
    checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor], ranks: int, alloc: Any, framework: Any
) -> None:
    """With two ranks the strips of o_proj are over 4 KiB, with four under it; those of down_proj always."""
    for rank in range(ranks):
        loaded = checkpoint.load(tp=(rank, ranks), alloc=alloc, framework=framework)
        assert_same(loaded, {name: tp_part(name, tensor, rank, ranks) for name, tensor in expected.items()})
        whole = {name for name in loaded if tp_part(name, expected[name], rank, ranks) is expected[name]}
        assert set(loaded.report.replicated) == whole


def test_only_the_rows_and_strips_of_a_rank_are_read(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.o_proj.weight": made("F32", 16, 4096),
        "model.layers.0.mlp.down_proj.weight": made("F32", 16, 512),
        "model.layers.0.mlp.up_proj.weight": made("F32", 16, 512),
    }
    save(tmp_path / "model.safetensors", tensors)
    with coldctl.open(tmp_path) as opened:
        report = opened.load(tp=(1, 2)).report
    long_strips, rows = 16 * 2048 * 4, 8 * 512 * 4
    short_strips = 15 * 512 * 4 + 256 * 4  # with what lies between them
    assert report.read_bytes == long_strips + short_strips + rows
    assert report.bytes == (16 * 4096 + 16 * 512 + 16 * 512) * 4 // 2


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_stages_get_their_layers(checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor], alloc: Any) -> None:
    parts = [checkpoint.load(stage=(number, 3), alloc=alloc) for number in range(3)]
    for number, part in enumerate(parts):
        layers = {name.split(".")[2] for name in part if name.startswith("model.layers.")}
        assert layers == {str(number)}
    assert {"model.embed_tokens.weight", "odd.byte", "nothing"} <= set(parts[0])
    assert {"lm_head.weight", "model.norm.weight"} <= set(parts[2])
    assert sum(map(len, parts)) == len(expected)
    assert_same({name: tensor for part in parts for name, tensor in part.items()}, expected)
    if alloc != "map":  # which reads what is not in memory already
        assert [part.report.read_bytes for part in parts] == [part.report.bytes for part in parts]


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_experts_are_shared_out(checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor], alloc: Any) -> None:
    for share, mine in ((0, "01"), (1, "23")):
        loaded = checkpoint.load(experts=(share, 2), alloc=alloc)
        wanted = {n: t for n, t in expected.items() if ".experts." not in n or n.split(".experts.")[1][0] in mine}
        assert_same(loaded, wanted)
        assert alloc == "map" or loaded.report.read_bytes == loaded.report.bytes


@pytest.mark.parametrize("split", [None, "tp", "stage", "experts"])
def test_several_devices_get_what_each_alone_would(
    checkpoint: OpenCheckpoint, expected: dict[str, torch.Tensor], split: Any
) -> None:
    loaded = checkpoint.load(devices=["cpu", "cpu"], split=split, order="layers")
    assert len(loaded) == 2
    for rank, each in enumerate(loaded):
        share: Any = {split: (rank, 2)} if split else {}
        alone = checkpoint.load("cpu", order="layers", **share)
        assert list(each) == list(alone)
        assert_same(each, alone)
        assert each.report.bytes == alone.report.bytes
        assert split == "tp" or each.report.read_bytes == each.report.bytes
    if split is None:
        assert_same(loaded[1], expected)


def test_a_share_that_no_device_can_have_fails_for_all(checkpoint: OpenCheckpoint) -> None:
    with pytest.raises(UsageError, match="4 stages, but the checkpoint has 3 layers"):
        checkpoint.load(devices=["cpu"] * 4, split="stage")


@pytest.fixture(scope="module")
def repacked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("repacked") / "model"
    repack(RepackOptions(str(folder), str(target), align="every"))
    return target


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_repacked_checkpoint_gives_the_same_without_its_fillers(
    repacked: Path, expected: dict[str, torch.Tensor], alloc: Any, framework: Any
) -> None:
    assert any(name.startswith("_coldctl_pad.") for name in library(repacked))
    with coldctl.open(repacked) as opened:
        assert_same(opened.load(alloc=alloc, framework=framework), expected)
        assert dict(opened.stream()).keys() == expected.keys()
        assert opened.tensors.keys() == expected.keys()
        assert opened.nbytes == sum(len(bits(tensor)) for tensor in opened.load(framework="numpy").values())


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("how", ["verify", "exact"])
def test_what_is_sound_is_found_sound(
    folder: Path, repacked: Path, expected: dict[str, torch.Tensor], alloc: Any, how: str
) -> None:
    tensors = len(expected)
    for path, by_manifest in ((folder, 0), (repacked, tensors if how == "verify" else 0)):
        with coldctl.open(path) as opened:
            loaded = opened.load(alloc=alloc, verify=how == "verify", exact=how == "exact")
        assert_same(loaded, expected)
        facts = loaded.report.integrity
        assert facts is not None
        assert (facts.manifest_tensors, facts.file_tensors) == (by_manifest, tensors - by_manifest)
        assert facts.exact is (how == "exact")
        assert "verify" in [stage.name for stage in loaded.report.stages]


def test_a_tensor_that_was_checked_in_both_ways_counts_once_for_each(folder: Path, repacked: Path) -> None:
    for path, has_manifest in ((folder, False), (repacked, True)):
        with coldctl.open(path) as opened:
            facts = opened.load(verify=True, exact=True).report.integrity
        assert facts is not None
        tensors = len(opened.tensors)
        assert (facts.manifest_tensors, facts.file_tensors) == (tensors * has_manifest, tensors)
        assert facts.exact


def test_shares_are_verified_against_the_file_and_what_is_whole_against_the_manifest(repacked: Path) -> None:
    with coldctl.open(repacked) as opened:
        loaded = opened.load(tp=(0, 2), verify=True)
    facts = loaded.report.integrity
    assert facts is not None
    assert facts.manifest_tensors == len(loaded.report.replicated)
    assert facts.manifest_tensors + facts.file_tensors == len(loaded)


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_a_flipped_bit_of_the_file_is_found_by_the_manifest(repacked: Path, tmp_path: Path, alloc: Any) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    for path in repacked.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        if path.suffix == ".safetensors" and name in (stored := read_shard(path)):
            raw = bytearray(path.read_bytes())
            raw[stored[name].offset + 1000] ^= 16
            (tmp_path / path.name).write_bytes(raw)
    with coldctl.open(tmp_path) as opened:
        assert bits(opened.load(alloc=alloc)[name]) != read_folder(repacked)[name].data
        with pytest.raises(FaultError, match=name) as caught:
            opened.load(alloc=alloc, verify=True)
        assert (caught.value.rule, caught.value.tensor, caught.value.stage) == ("digest.mismatch", name, "verify")
        opened.load(alloc=alloc, exact=True)  # it is what the file holds


def test_float8_is_torchs_own_bit_for_bit(tmp_path: Path) -> None:
    every_byte = Made("F8_E4M3", (16, 16), bytes(range(256)))
    write_shard(tmp_path / "model.safetensors", {"w": every_byte, "w_scale": made("F32")})
    with coldctl.open(tmp_path) as opened:
        for alloc in ("arena", "per-tensor", "map"):
            ours = opened.load(alloc=alloc)["w"]
            assert ours.dtype is torch.float8_e4m3fn
            assert bits(ours) == bytes(range(256))
            with safe_open(tmp_path / "model.safetensors", "pt") as file:
                theirs = file.get_tensor("w").to(torch.float32)
            assert torch.equal(ours.to(torch.float32).nan_to_num(7e7), theirs.nan_to_num(7e7))


def test_float8_is_dequantised_on_load_where_that_is_asked_for(tmp_path: Path) -> None:
    scale = Made("F32", (), np.float32(0.5).tobytes())
    one = Made("F8_E4M3", (4, 4), bytes([0x38] * 16))  # 1.0
    write_shard(tmp_path / "model.safetensors", {"w_scale": scale, "w": one})
    with coldctl.open(tmp_path) as opened:
        loaded = opened.load(transform=coldctl.Dequantise())
        assert torch.equal(loaded["w"], torch.full((4, 4), 0.5, dtype=torch.bfloat16))
        assert float(loaded["w_scale"]) == 0.5
        streamed = dict(opened.stream(transform=coldctl.Dequantise("F32")))
        assert torch.equal(streamed["w"], torch.full((4, 4), 0.5))
        handle = opened.load(first_layers=1, transform=coldctl.Dequantise("F32"))
        assert torch.equal(handle.wait()["w"], torch.full((4, 4), 0.5))


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_checkpoints_of_nothing_but_empty_tensors(tmp_path: Path, alloc: Any) -> None:
    write_shard(tmp_path / "a.safetensors", {"a": made("F32", 0), "b": made("BF16", 3, 0)})
    with coldctl.open(tmp_path / "a.safetensors") as opened:
        for framework in ("torch", "numpy"):
            loaded = opened.load(alloc=alloc, framework=framework)
            assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {"a": (0,), "b": (3, 0)}
        assert (loaded.report.bytes, loaded.report.read_bytes, loaded.report.arena_bytes) == (0, 0, 0)
        assert set(opened.load(alloc=alloc, verify=True)) == {"a", "b"}
        assert set(opened.load(alloc=alloc, first_layers=0).wait()) == {"a", "b"}
        assert {name for name, _ in opened.stream(alloc=alloc)} == {"a", "b"}


def test_tensors_of_an_arena_are_views_and_those_of_a_map_cannot_be_written(checkpoint: OpenCheckpoint) -> None:
    arena = checkpoint.load(framework="numpy")
    first, second = arena["odd.large"], arena["model.norm.weight"]
    begin, end = (f(each.__array_interface__["data"][0] for each in arena.values() if each.nbytes) for f in (min, max))
    assert end - begin < arena.report.arena_bytes
    assert begin % 4096 == checkpoint.tensors["model.embed_tokens.weight"].offset_bytes % 4096
    first[:] = 0
    assert second.any()
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.load(alloc="map", framework="numpy")["odd.large"][:] = 0


def test_every_allocation_of_its_own_holds_one_tensor(checkpoint: OpenCheckpoint) -> None:
    loaded = checkpoint.load(alloc="per-tensor", framework="torch")
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in loaded.values())
    assert loaded.report.arena_bytes == 0
    assert (loaded.report.mode, loaded.report.streams) == ("per-tensor", 1)


def test_a_closed_checkpoint_loads_nothing_more_and_its_tensors_stay(
    folder: Path, expected: dict[str, torch.Tensor]
) -> None:
    with coldctl.open(folder) as opened:
        loaded = {alloc: opened.load(alloc=alloc) for alloc in ("arena", "map")}
    for kept in loaded.values():
        assert_same(kept, expected)
    for begin in (opened.load, opened.stream):
        with pytest.raises(UsageError, match="the checkpoint was closed"):
            begin()


@pytest.fixture
def two_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The process works in `here`; `there` has other weights by the same names."""
    for seed, home in enumerate(("here", "there")):
        (tmp_path / home / "weights").mkdir(parents=True)
        write_shard(tmp_path / home / "weights" / "model.safetensors", {"t": made("F32", 100, seed=seed)})
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("path", ["weights", "./weights/model.safetensors", "../here/weights", "."])
@pytest.mark.parametrize("options", [{}, {"mode": "direct"}, {"alloc": "map"}, {"verify": True}])
def test_the_process_may_work_elsewhere_by_the_time_of_the_load(
    two_homes: Path, monkeypatch: pytest.MonkeyPatch, path: str, options: Any
) -> None:
    if path == ".":
        monkeypatch.chdir("weights")
    with coldctl.open(path) as checkpoint:
        monkeypatch.chdir(two_homes / "there")
        loaded = checkpoint.load(**options)
        assert bits(loaded["t"]) == bits(dict(checkpoint.stream(**options))["t"]) == made("F32", 100, seed=0).data


def test_a_manifest_is_found_from_elsewhere(two_homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repack(RepackOptions(source="weights", target="repacked"))
    with coldctl.open("repacked") as checkpoint:
        monkeypatch.chdir(two_homes / "there")
        integrity = checkpoint.load(verify=True).report.integrity
    assert integrity is not None
    assert (integrity.manifest_tensors, integrity.file_tensors) == (1, 0)


def test_a_path_is_told_as_it_was_given(two_homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^nothing does not exist$"):
        coldctl.open("nothing")
    with coldctl.open("weights") as checkpoint:
        monkeypatch.chdir(two_homes)
        (two_homes / "here/weights/model.safetensors").unlink()
        with pytest.raises(
            InputError, match=r"^cannot open model.safetensors: No such file or directory \(stage"
        ) as caught:
            checkpoint.load(mode="buffered")
    assert (caught.value.file, caught.value.tensor) == ("model.safetensors", "t")


def test_links_are_followed_when_files_are_read_and_not_before(
    two_homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("link").symlink_to("weights")
    with coldctl.open("link") as checkpoint:
        monkeypatch.chdir(two_homes)
        assert set(checkpoint.load()) == {"t"}
        (two_homes / "here/link").unlink()
        (two_homes / "here/link").symlink_to(two_homes / "there/weights")
        with pytest.raises(ChangedError, match="was changed or replaced"):
            checkpoint.load()


def test_a_single_file_and_its_metadata(tmp_path: Path) -> None:
    write_shard(tmp_path / "one.safetensors", {"a": made("F32", 3)}, {"format": "pt", "by": "hand"})
    write_shard(tmp_path / "other.safetensors", {"a": made("F32", 4)})
    with coldctl.open(tmp_path / "one.safetensors") as opened:
        assert dict(opened.metadata) == {"format": "pt", "by": "hand"}
        assert (list(opened.tensors), opened.nbytes) == (["a"], 12)
        with safe_open(tmp_path / "one.safetensors", "pt") as file:
            assert_same(opened.load(), {"a": file.get_tensor("a")})


def test_the_report_is_what_arithmetic_says(tmp_path: Path) -> None:
    """One run of 3 MiB that keeps its place in a page, and one file of odd tensors in slots of 256 bytes."""
    even = {
        "model.embed_tokens.weight": made("F32", 256, 1024),
        "model.layers.0.self_attn.q_proj.weight": made("F32", 256, 1024),
        "model.layers.1.mlp.up_proj.weight": made("F32", 256, 1024),
    }
    odd = {"a": made("U8", 300), "b": made("F32", 25), "c": made("U8", 0), "d": made("U8", 1)}
    save(tmp_path / "model-00001-of-00002.safetensors", even, boundary=4096, past=64)
    save(tmp_path / "model-00002-of-00002.safetensors", odd, past=1)
    with coldctl.open(tmp_path) as opened:
        report = opened.load().report
    assert (report.device, report.mode, report.alloc, report.order) == ("cpu", "buffered", "arena", "file")
    assert (report.tensors, report.bytes, report.read_bytes) == (7, 3 * MIB + 401, 3 * MIB + 401)
    assert report.arena_bytes == 64 + 3 * MIB + 192 + 512 + 256 + 1
    assert (report.direct_bytes, report.gds_bytes) == (0, 0)
    assert (report.replicated, report.ring, report.copies, report.integrity, report.notes) == ((), None, None, None, ())
    assert report.first_layers_seconds is None
    assert report.streams >= 1
    stages = {stage.name: stage for stage in report.stages}
    assert list(stages) == ["plan", "allocate", "read"]
    assert (stages["allocate"].bytes, stages["read"].bytes) == (report.arena_bytes, report.read_bytes)
    for stage in report.stages:
        assert 0 <= stage.start_seconds <= stage.start_seconds + stage.seconds <= report.seconds
    (attention_seconds,) = report.attention_ready_seconds
    assert stages["read"].start_seconds <= attention_seconds <= report.seconds
    assert report.order_facts is None  # the order is that of the files
    assert len(fields(LoadReport)) == 22  # whoever adds a field says here what it is


def test_the_report_of_a_map_and_of_tensors_apart(checkpoint: OpenCheckpoint) -> None:
    nbytes = checkpoint.nbytes
    mapped, apart = (checkpoint.load(alloc=alloc).report for alloc in ("map", "per-tensor"))
    assert (mapped.mode, mapped.alloc, mapped.arena_bytes, mapped.bytes) == ("map", "map", 0, nbytes)
    assert mapped.read_bytes <= nbytes  # of what is in the page cache nothing
    assert (apart.mode, apart.alloc, apart.arena_bytes, apart.read_bytes) == ("per-tensor", "per-tensor", 0, nbytes)
    assert "allocate" not in [stage.name for stage in (*mapped.stages, *apart.stages)]


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_memory_goes_with_the_last_tensor_and_not_with_the_next_collection(tmp_path: Path, alloc: Any) -> None:
    """Four of each load are kept, and all tensors dropped: one that held its 8 MiB would show as 32 MiB."""
    save(tmp_path / "model.safetensors", {f"model.layers.{n}.w": made("U8", 2 * MIB, seed=n) for n in range(4)})
    with coldctl.open(tmp_path) as opened:

        def results_without_tensors() -> list[Loaded]:
            in_layers = opened.load(alloc=alloc, first_layers=1).wait()
            results = [opened.load(alloc=alloc), in_layers, *opened.load(alloc=alloc, devices=["cpu", "cpu"])]
            for each in results:
                assert len(each) == 4
                each.clear()
            return results

        for _ in range(3):
            results_without_tensors()
        gc.collect()
        gc.disable()
        try:
            before = footprint(tmp_path)
            kept = [results_without_tensors() for _ in range(4)]
            assert_given_back(before, tmp_path, within_bytes=24 * MIB, collect=False)
        finally:
            gc.enable()
    assert all(each.report.bytes == 8 * MIB for results in kept for each in results)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import coldctl, hashlib, json
found = {}
with coldctl.open(sys.argv[1]) as checkpoint:
    for alloc in ("arena", "per-tensor", "map"):
        loaded = checkpoint.load(alloc=alloc, verify=True, exact=alloc == "map")
        found[alloc] = {n: [str(t.dtype), t.shape, hashlib.sha256(t.tobytes()).hexdigest()] for n, t in loaded.items()}
    found["stream"] = [n for n, t in checkpoint.stream(order="name")]
    found["first"] = sorted(checkpoint.load(first_layers=1).wait())
    found["tp"] = [list(each["lm_head.weight"].shape) for each in checkpoint.load(devices=["cpu", "cpu"], split="tp")]
    try:
        checkpoint.load(framework="torch")
    except coldctl.ColdctlError as error:
        found["torch"] = [error.exit_code, str(error.hint)]
print(json.dumps(found))
"""


def test_without_torch_everything_comes_as_numpy_arrays(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    done = run_python("-c", WITHOUT_TORCH, str(folder))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    stored = read_folder(folder)
    for alloc in ("arena", "per-tensor", "map"):
        assert {n: d for n, (_, _, d) in found[alloc].items()} == {
            n: hashlib.sha256(t.data).hexdigest() for n, t in stored.items()
        }
        assert found[alloc]["lm_head.weight"][:2] == ["uint16", [512, 1024]]
        assert found[alloc]["odd.float8"][:2] == ["uint8", [33, 7]]
        assert found[alloc]["odd.complex"][:2] == ["complex64", [2]]
    assert sorted(found["stream"]) == found["first"] == sorted(expected)
    assert found["tp"] == [[256, 1024], [256, 1024]]
    assert found["torch"] == [5, "pip install coldctl[torch]"]


def test_pickled_it_is_the_tensors_alone(tmp_path: Path) -> None:
    save_mixed(tmp_path)
    with coldctl.open(tmp_path) as checkpoint:
        loaded = checkpoint.load(names=["model.norm.weight"])
    again = pickle.loads(pickle.dumps(loaded))
    assert type(again) is dict
    assert list(again) == ["model.norm.weight"]
    assert bits(again["model.norm.weight"]) == bits(loaded["model.norm.weight"])


@pytest.mark.parametrize(
    "again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_an_open_checkpoint_can_be_pickled_whatever_it_has_loaded(tmp_path: Path, again: Any) -> None:
    save_mixed(tmp_path)
    with coldctl.open(tmp_path) as checkpoint:
        for _ in range(2):
            other = again(checkpoint)
            assert dict(other.tensors) == dict(checkpoint.tensors)
            assert_same(other.load(verify=True), checkpoint.load(first_layers=1).wait())
    with pytest.raises(UsageError, match="was closed"):
        again(checkpoint).load()
    (tmp_path / "model-00001-of-00004.safetensors").touch()
    with pytest.raises(ChangedError):
        other.load()


def test_the_loads_of_several_devices_have_ended_when_an_interrupt_comes_out(
    checkpoint: OpenCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a second one, while the first is still waiting for them."""
    inside, stopped, interrupts = threading.Event(), threading.Event(), itertools.count()
    really = Latch.wait

    class Held(Events):
        def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
            inside.set()
            assert stopped.wait(PATIENCE_SECONDS)

    def interrupted(self: Latch, timeout_seconds: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            assert inside.wait(PATIENCE_SECONDS)
            if next(interrupts) < 2:
                raise KeyboardInterrupt
            stopped.set()
        return really(self, timeout_seconds)

    monkeypatch.setattr(Latch, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(devices=["cpu", "cpu"], events=Held())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl-")]


def test_no_more_readers_than_there_is_to_read(tmp_path: Path) -> None:
    save_mixed(tmp_path)
    with coldctl.open(tmp_path) as checkpoint:
        assert checkpoint.load(names=["model.norm.weight"], readers=8000).report.streams == 1
