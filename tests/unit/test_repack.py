"""repack through its Python API: what comes out, what is refused, and that the source is never touched."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from coldctl.errors import FaultError, InputError, NoSpaceError, RefusedError, StoppedError, UsageError
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.loader.format.layout import ALIGNS, Align
from coldctl.loader.order import ORDERS, Order
from coldctl.results.facts import SkippedFile
from coldctl.results.repack import RepackResult
from tests.tiny import (
    Made,
    Tensors,
    contents,
    header_of,
    made,
    read_folder,
    read_shard,
    snapshot,
    without_places,
    write_shard,
    write_sharded,
)

MIB = 1 << 20
FILLER = "_coldctl_pad."

FIRST: Tensors = {
    "model.layers.1.self_attn.q_proj.weight": made("BF16", 64, 64),
    "model.embed_tokens.weight": made("BF16", 100, 32),
    "model.layers.0.self_attn.q_proj.weight": made("BF16", 64, 32),
    "model.layers.0.input_layernorm.weight": made("BF16", 32),
    "model.layers.0.mlp.packed": made("F4", 2, 5),
    "model.layers.0.empty": made("F32", 0, 7),
}
SECOND: Tensors = {
    "model.layers.1.mlp.gate_proj.weight": made("F8_E4M3", 3, 4096),
    "model.layers.1.mlp.gate_proj.weight_scale_inv": made("F32", 3, 1),
    "model.norm.weight": made("BF16", 2050),
    "lm_head.weight": made("F32", 2, MIB // 8 + 3),
    "model.scalar": made("I64"),
    "model.flag": Made("BOOL", (3,), b"\0\1\1"),
    "model.six": made("F6_E2M3", 4),
}
ALL = {**FIRST, **SECOND}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two shards of tensors of all kinds, with files beside them."""
    folder = tmp_path / "source"
    write_sharded(folder, [FIRST, SECOND], {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "sub").mkdir()
    (folder / "sub" / "vocab.txt").write_text("a\nb\n")
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    return folder


def run(source: Path, target: Path, **options: Any) -> RepackResult:
    return repack(RepackOptions(str(source), str(target), **options))


def data_order(path: Path) -> list[str]:
    """The names of a file's tensors by their place in the data."""
    stored = read_shard(path)
    return sorted(stored, key=lambda name: (stored[name].offset, len(stored[name].data)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("align", ALIGNS)
def test_every_tensor_is_the_same_bit_for_bit(source: Path, tmp_path: Path, align: Align, order: Order) -> None:
    before = snapshot(source)
    result = run(source, tmp_path / "target", align=align, order=order)
    assert without_places(read_folder(tmp_path / "target")) == ALL
    assert snapshot(source) == before
    assert (result.tensors, result.bytes) == (13, sum(len(t.data) for t in ALL.values()))
    assert not verify(VerifyOptions(str(tmp_path / "target"))).errors
    names = sorted(path.name for path in (tmp_path / "target").iterdir())
    assert names == ["coldctl.json", "config.json", "model-00001-of-00002.safetensors",
                     "model-00002-of-00002.safetensors", "model.safetensors.index.json", "sub"]  # fmt: skip


@pytest.mark.parametrize("align", ALIGNS)
def test_the_safetensors_library_reads_the_same_arrays(tmp_path: Path, align: Align) -> None:
    tensors = {"a": made("I64", 3, 5), "b": made("U8", 4096), "c": made("F32", 0, 2), "d": made("U8", 7)}
    write_shard(tmp_path / "source" / "model.safetensors", tensors, {"format": "pt", "who": "me"})
    run(tmp_path / "source", tmp_path / "target", align=align)
    with (
        safe_open(tmp_path / "source" / "model.safetensors", "numpy") as old,
        safe_open(tmp_path / "target" / "model.safetensors", "numpy") as new,
    ):
        assert new.metadata() == {"format": "pt", "who": "me"}
        assert {name for name in new.keys() if not name.startswith(FILLER)} == set(tensors)  # noqa: SIM118
        for name in tensors:
            assert new.get_tensor(name).dtype == old.get_tensor(name).dtype
            assert np.array_equal(new.get_tensor(name), old.get_tensor(name))


def test_page_adds_no_keys_and_puts_whole_pages_on_pages(source: Path, tmp_path: Path) -> None:
    result = run(source, tmp_path / "target")
    stored = read_folder(tmp_path / "target")
    assert set(stored) == set(ALL)
    on_page = {name for name, tensor in stored.items() if tensor.offset % 4096 == 0}
    # 64 × 64 and 64 × 32 BF16 are two pages and one, 3 × 4096 bytes are three; the empty one costs nothing.
    assert {
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.0.empty",
    } <= on_page
    for name, tensor in stored.items():
        power = len(tensor.data) & -len(tensor.data)
        assert tensor.offset % min(power or 4096, 4096) == 0, name
    assert result.aligned_tensors == len(on_page)
    assert result.aligned_bytes == sum(len(stored[name].data) for name in on_page)
    assert result.fillers == 0
    # All but one of the tensors in each file that are no whole number of pages: 3 of 6, and 6 of 7.
    assert result.every_adds_fillers == 2 + 5


def test_every_puts_each_tensor_on_a_page_and_lists_its_fillers(source: Path, tmp_path: Path) -> None:
    result = run(source, tmp_path / "target", align="every")
    target = tmp_path / "target"
    assert all(tensor.offset % 4096 == 0 for tensor in read_folder(target).values())
    fillers = {
        name: (path.name, tensor)
        for path in target.glob("*.safetensors")
        for name, tensor in read_shard(path).items()
        if name.startswith(FILLER)
    }
    assert len(fillers) == result.fillers == 7
    assert all(tensor.dtype == "U8" and not any(tensor.data) for _, tensor in fillers.values())
    weight_map = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    assert {name: file for name, file in weight_map.items() if name.startswith(FILLER)} == {
        name: file for name, (file, _) in fillers.items()
    }
    assert (result.aligned_tensors, result.tensors) == (13, 13)
    assert [data_order(path)[-1].startswith(FILLER) for path in target.glob("*.safetensors")] == [False, False]


def test_the_header_is_padded_with_spaces_to_whole_pages(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    for path in (tmp_path / "target").glob("*.safetensors"):
        begins, _ = header_of(path)
        assert begins % 4096 == 0
        text = path.read_bytes()[8:begins]
        assert text[:1] == b"{"
        assert text.rstrip(b" ").endswith(b"}")


NAMED = {
    "name": ["lm_head.w", "m.layers.0.mlp.w", "m.layers.0.self_attn.w", "m.layers.1.self_attn.w", "m.wte.w"],
    "layers": ["m.wte.w", "m.layers.0.mlp.w", "m.layers.0.self_attn.w", "m.layers.1.self_attn.w", "lm_head.w"],
    "attention-first": ["m.layers.0.self_attn.w", "m.layers.1.self_attn.w", "m.wte.w", "m.layers.0.mlp.w", "lm_head.w"],
    "file": ["m.layers.0.self_attn.w", "lm_head.w", "m.wte.w", "m.layers.1.self_attn.w", "m.layers.0.mlp.w"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_holds_inside_each_alignment_group(tmp_path: Path, order: Order) -> None:
    pages = {name: made("U8", 4096, seed=n) for n, name in enumerate(NAMED["file"])}
    odd = {f"{name}.bias": made("U8", 3) for name in NAMED["file"]}
    write_shard(tmp_path / "source" / "model.safetensors", {**odd, **pages})
    run(tmp_path / "source", tmp_path / "target", order=order)
    expected = NAMED[order]
    assert data_order(tmp_path / "target" / "model.safetensors") == expected + [f"{name}.bias" for name in expected]


def test_file_order_goes_shard_by_shard_when_shards_are_merged(tmp_path: Path) -> None:
    write_sharded(tmp_path / "source", [{"z": made("U8", 4096), "b": made("U8", 4096)}, {"a": made("U8", 4096)}])
    run(tmp_path / "source", tmp_path / "target", order="file", shard_size_bytes=MIB)
    assert data_order(tmp_path / "target" / "model.safetensors") == ["z", "b", "a"]


def test_tensors_of_no_bytes_stand_before_their_neighbour(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    stored = read_shard(tmp_path / "target" / "model-00001-of-00002.safetensors")
    header_order = list(stored)
    assert header_order[0] == "model.layers.0.empty"
    assert stored["model.layers.0.empty"].offset == stored[header_order[1]].offset


def test_shards_are_cut_at_the_size_asked_for(source: Path, tmp_path: Path) -> None:
    result = run(source, tmp_path / "target", shard_size_bytes=20_000)
    target = tmp_path / "target"
    paths = sorted(target.glob("*.safetensors"))
    total = len(paths)
    assert total > 2
    assert [path.name for path in paths] == [f"model-{n:05d}-of-{total:05d}.safetensors" for n in range(1, total + 1)]
    assert [file.path for file in result.files] == [path.name for path in paths]
    assert [file.size_bytes for file in result.files] == [path.stat().st_size for path in paths]
    sizes = [[len(tensor.data) for tensor in read_shard(path).values()] for path in paths]
    assert all(sum(each) <= 20_000 or [n for n in each if n] == [MIB + 24] for each in sizes)
    assert without_places(read_folder(target)) == ALL
    assert not verify(VerifyOptions(str(target))).errors


def test_shards_are_merged_into_one_file_with_an_index_where_there_was_one(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target", shard_size_bytes=1 << 30)
    target = tmp_path / "target"
    assert [path.name for path in target.glob("*.safetensors")] == ["model.safetensors"]
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict.fromkeys(ALL, "model.safetensors")
    assert without_places(read_folder(target)) == ALL
    assert not verify(VerifyOptions(str(target))).errors


def metadata_of(folder: Path) -> list[Any]:
    return [header_of(path)[1].get("__metadata__") for path in sorted(folder.glob("*.safetensors"))]


def test_metadata_stays_as_it_is_shard_by_shard(tmp_path: Path) -> None:
    every = [None, {}, {"format": "pt"}, {"format": "pt", "ключ": "значение\n"}]
    write_sharded(tmp_path / "source", [{f"t{n}": made("U8", 3)} for n in range(4)], every)
    run(tmp_path / "source", tmp_path / "target")
    assert metadata_of(tmp_path / "target") == every


@pytest.mark.parametrize(
    ("first", "second", "united"),
    [
        ({"format": "pt", "a": "1"}, {"format": "pt", "b": "2"}, {"format": "pt", "a": "1", "b": "2"}),
        (None, {"format": "pt"}, {"format": "pt"}),
        (None, {}, {}),
        (None, None, None),
    ],
)
def test_metadata_of_merged_shards_are_united(
    tmp_path: Path, first: dict[str, str] | None, second: dict[str, str] | None, united: dict[str, str] | None
) -> None:
    write_sharded(tmp_path / "source", [{"a": made("U8", 3)}, {"b": made("U8", 3)}], [first, second])
    run(tmp_path / "source", tmp_path / "target", shard_size_bytes=MIB)
    assert metadata_of(tmp_path / "target") == [united]


def test_metadata_that_disagree_are_refused_only_where_they_would_meet(tmp_path: Path) -> None:
    tensors = [{"a": made("U8", 3000)}, {"b": made("U8", 3000)}]
    write_sharded(tmp_path / "source", tensors, [{"format": "pt"}, {"format": "np"}])
    with pytest.raises(RefusedError, match="their metadata disagree on 'format'"):
        run(tmp_path / "source", tmp_path / "target", shard_size_bytes=MIB)
    assert not (tmp_path / "target").exists()
    run(tmp_path / "source", tmp_path / "target", shard_size_bytes=3000)
    assert metadata_of(tmp_path / "target") == [{"format": "pt"}, {"format": "np"}]


@pytest.mark.parametrize("align", ALIGNS)
def test_metadata_of_the_index_is_kept_with_the_new_total(source: Path, tmp_path: Path, align: Align) -> None:
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"] |= {"total_size": 1, "total_parameters": 7, "nested": {"a": [1, None]}}
    path.write_text(json.dumps(index))
    run(source, tmp_path / "target", align=align)
    metadata = json.loads((tmp_path / "target" / "model.safetensors.index.json").read_text())["metadata"]
    files = (tmp_path / "target").glob("*.safetensors")
    total = sum(len(tensor.data) for file in files for tensor in read_shard(file).values())
    assert metadata == {"total_size": total, "total_parameters": 7, "nested": {"a": [1, None]}}


def test_two_runs_make_the_same_bytes(source: Path, tmp_path: Path) -> None:
    """Whatever the source's path, its times, and the order in which threads finish."""
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    run(source, tmp_path / "one", align="every", order="layers")
    source.rename(moved)
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    run(moved, tmp_path / "two", align="every", order="layers")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("align", ALIGNS)
def test_a_repacked_checkpoint_can_be_repacked_and_back(source: Path, tmp_path: Path, align: Align) -> None:
    """Fillers of the first run are no tensors of the second."""
    run(source, tmp_path / "first", align="every")
    run(tmp_path / "first", tmp_path / "second", align=align)
    run(source, tmp_path / "direct", align=align)
    assert contents(tmp_path / "second") == contents(tmp_path / "direct")
    run(tmp_path / "first", tmp_path / "third", align=align, shard_size_bytes=MIB // 2)
    assert without_places(read_folder(tmp_path / "third")) == ALL
    assert not verify(VerifyOptions(str(tmp_path / "third"))).errors


def test_sidecars_come_along_and_what_stays_is_named(source: Path, tmp_path: Path) -> None:
    (source / ".gitattributes").write_text("hidden")
    (source / "passwd").symlink_to("/etc/passwd")
    result = run(source, tmp_path / "target")
    target = tmp_path / "target"
    assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (target / "sub" / "vocab.txt").read_bytes() == b"a\nb\n"
    assert result.sidecars == ["config.json", "sub/vocab.txt"]
    assert result.skipped == [
        SkippedFile("passwd", "a link that leads out of the checkpoint"),
        SkippedFile("pytorch_model.bin", "weights that the checkpoint does not use"),
    ]
    assert not {"passwd", "pytorch_model.bin", ".gitattributes"} & {path.name for path in target.iterdir()}


def test_a_single_file_becomes_a_folder_without_its_neighbours(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "weights.safetensors", {"b": made("U8", 5), "a": made("U8", 4096)})
    (tmp_path / "in" / "other.safetensors").write_bytes(b"not looked at")
    (tmp_path / "in" / "secret.txt").write_text("not ours")
    before = snapshot(tmp_path / "in")
    result = run(tmp_path / "in" / "weights.safetensors", tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == ["coldctl.json", "weights.safetensors"]
    assert data_order(tmp_path / "out" / "weights.safetensors") == ["a", "b"]
    assert snapshot(tmp_path / "in") == before
    assert result.sidecars == []


def test_a_single_file_can_be_repacked_into_a_folder_beside_it(tmp_path: Path) -> None:
    write_shard(tmp_path / "weights.safetensors", {"a": made("U8", 5)})
    run(tmp_path / "weights.safetensors", tmp_path / "out")
    assert without_places(read_folder(tmp_path / "out")) == {"a": made("U8", 5)}


def test_a_hub_cache_snapshot_becomes_plain_files(source: Path, tmp_path: Path) -> None:
    blobs, snapshot_folder = tmp_path / "m" / "blobs", tmp_path / "m" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot_folder.mkdir(parents=True)
    for number, path in enumerate(path for path in sorted(source.iterdir()) if path.is_file()):
        path.rename(blobs / f"{number}")
        (snapshot_folder / path.name).symlink_to(f"../../blobs/{number}")
    run(snapshot_folder, tmp_path / "target")
    assert without_places(read_folder(tmp_path / "target")) == ALL
    assert not any(path.is_symlink() for path in (tmp_path / "target").rglob("*"))


def test_shards_in_subfolders_stay_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_shard(source / "unet" / "a.safetensors", {"a": made("U8", 5)})
    write_shard(source / "b.safetensors", {"b": made("U8", 6)})
    index = {"weight_map": {"a": "unet/a.safetensors", "b": "b.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    run(source, tmp_path / "target")
    assert without_places(read_folder(tmp_path / "target")) == {"a": made("U8", 5), "b": made("U8", 6)}
    assert (tmp_path / "target" / "unet" / "a.safetensors").exists()
    assert not verify(VerifyOptions(str(tmp_path / "target"))).errors


def test_a_file_without_tensors_is_one_too(tmp_path: Path) -> None:
    write_shard(tmp_path / "source" / "model.safetensors", {}, {"format": "pt"})
    for number, size in enumerate((None, MIB)):
        target = tmp_path / f"target-{number}"
        run(tmp_path / "source", target, shard_size_bytes=size)
        assert header_of(target / "model.safetensors") == (4096, {"__metadata__": {"format": "pt"}})
        assert not verify(VerifyOptions(str(target))).errors


def test_names_of_all_kinds_survive(tmp_path: Path) -> None:
    tensors = {name: made("U8", 2, seed=n) for n, name in enumerate(['a"b', "a\\b", "ä/ö", "\x1b[31m", "\n", "", "😀"])}
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    run(tmp_path / "source", tmp_path / "target", align="every")
    assert without_places(read_folder(tmp_path / "target")) == tensors


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("source", "source and target are the same folder"),
        ("link", "source and target are the same folder"),
        ("source/sub/..", "source and target are the same folder"),
        ("source/new", "lies inside the source"),
        ("link/sub", "lies inside the source"),
        (".", "the source lies inside the target"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_source_and_target_may_not_overlap(
    source: Path, tmp_path: Path, target: str, message: str, force: bool
) -> None:
    (tmp_path / "link").symlink_to(source)
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match=message):
        run(source, tmp_path / target, force=force)
    assert snapshot(tmp_path) == before


def test_the_folder_of_a_single_file_is_no_target_for_it(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "model.safetensors", {"a": made("U8", 5)})
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="source and target are the same folder"):
        run(tmp_path / "in" / "model.safetensors", tmp_path / "in", force=True)
    assert snapshot(tmp_path) == before


def test_a_target_that_is_not_empty_is_refused_and_left_alone(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    before = snapshot(target)
    with pytest.raises(RefusedError, match="is not empty") as caught:
        run(source, target)
    assert "--force" in str(caught.value.hint)
    assert snapshot(target) == before


def test_an_empty_target_will_do_and_so_will_one_that_a_killed_run_left(source: Path, tmp_path: Path) -> None:
    for name in ("empty", "left"):
        (tmp_path / name).mkdir()
    (tmp_path / "left" / ".coldctl-123-0.tmp").write_bytes(b"x" * 100)
    for name in ("empty", "left"):
        run(source, tmp_path / name)
    assert contents(tmp_path / "empty") == contents(tmp_path / "left")


def test_force_leaves_weights_that_are_not_of_the_old_checkpoint(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run(source, target)
    (target / "adapter_model.safetensors").write_bytes(b"an adapter")
    (target / "pytorch_model.bin").write_bytes(b"another format")
    run(source, target, force=True, shard_size_bytes=1 << 40)
    assert (target / "adapter_model.safetensors").read_bytes() == b"an adapter"
    assert (target / "pytorch_model.bin").read_bytes() == b"another format"


def test_a_folder_in_a_files_place_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "coldctl.json").mkdir(parents=True)
    with pytest.raises(RefusedError, match=r"coldctl\.json in .* is a folder"):
        run(source, target, force=True)
    assert [entry.name for entry in target.iterdir()] == ["coldctl.json"]


def test_force_removes_only_what_an_index_or_a_manifest_of_ours_names_and_says_so(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_sharded(target, [{"old": made("U8", 3)}, {"older": made("U8", 3)}, {"oldest": made("U8", 3)}])
    theirs = {
        "pytorch_model.bin.index.json": b"{}",
        "faiss.index.json": b"{}",
        "finetune.safetensors": b"the only copy",
        "model-00001-of-00009.safetensors": b"of something else",
        "config.json": b"old",
    }
    for name, data in theirs.items():
        (target / name).write_bytes(data)
    expected = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert run(source, target, force=True, dry_run=True).removed == expected
    assert run(source, target, force=True).removed == expected
    run(source, tmp_path / "fresh")
    assert contents(target) == theirs | contents(tmp_path / "fresh")
    # The config.json of the old one stood under a name that the new one has: replaced, not removed.
    assert (target / "config.json").read_bytes() != b"old"


def test_without_an_index_a_manifest_says_what_was_ours(tmp_path: Path) -> None:
    write_shard(tmp_path / "one" / "one.safetensors", {"one": made("U8", 3)})
    write_shard(tmp_path / "two" / "two.safetensors", {"two": made("U8", 3)})
    run(tmp_path / "one", tmp_path / "target")
    assert run(tmp_path / "two", tmp_path / "target", force=True).removed == ["one.safetensors"]
    assert sorted(contents(tmp_path / "target")) == ["coldctl.json", "two.safetensors"]


@pytest.mark.parametrize("path", ["../victim.safetensors", "/tmp/x.safetensors", "notes.txt", "out/victim.safetensors"])
def test_a_manifest_cannot_have_other_files_removed(tmp_path: Path, path: str) -> None:
    write_shard(tmp_path / "source" / "model.safetensors", {"a": made("U8", 3)})
    target = tmp_path / "target"
    run(tmp_path / "source", target)
    (tmp_path / "victim.safetensors").write_bytes(b"victim")
    (target / "out").symlink_to(tmp_path)
    (target / "notes.txt").write_text("mine")
    document = json.loads((target / "coldctl.json").read_text())
    document["files"].append({**document["files"][0], "path": path})
    (target / "coldctl.json").write_text(json.dumps(document))
    assert run(tmp_path / "source", target, force=True).removed == []
    assert (tmp_path / "victim.safetensors").read_bytes() == b"victim"
    assert (target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("new", "stays"),
    [
        ("weights.safetensors", "model.safetensors"),
        ("weights.safetensors", "finetune.safetensors"),
        ("model.safetensors", "b.safetensors.index.json"),
    ],
)
def test_weights_that_would_be_taken_for_the_new_ones_are_refused(tmp_path: Path, new: str, stays: str) -> None:
    write_shard(tmp_path / "source" / new, {"a": made("U8", 3)})
    target = tmp_path / "target"
    target.mkdir()
    for name in {stays, stays.replace("b.", "c.")}:
        (target / name).write_text('{"weight_map": {}}')
    before = snapshot(target)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="loaders would take it for the checkpoint"):
            run(tmp_path / "source", target, force=True, dry_run=dry_run)
    assert snapshot(target) == before


ODD_SINGLE_FILES = [
    ".model.safetensors", "weights.data", "x.bin", "model-00001-of-00003.safetensors",
    "model-00000-of-00002.safetensors", ".safetensors", "a.safetensors.incomplete", "x-1-of-2-1-of-3.safetensors",
    "no suffix",
]  # fmt: skip
PLAIN_SINGLE_FILES = [
    "weights.safetensors",
    "model-00001-of-00001.safetensors",
    "a-b-of-c.safetensors",
    "-1-of-2.safetensors",
]


@pytest.mark.parametrize("size", [None, MIB, 10])
@pytest.mark.parametrize("name", [*ODD_SINGLE_FILES, *PLAIN_SINGLE_FILES])
def test_a_single_file_is_found_in_the_new_folder_whatever_it_was_called(
    tmp_path: Path, name: str, size: int | None
) -> None:
    tensors = {"a": made("U8", 9), "b": made("U8", 8)}
    write_shard(tmp_path / "in" / name, tensors)
    result = run(tmp_path / "in" / name, tmp_path / "out", shard_size_bytes=size)
    verified = verify(VerifyOptions(str(tmp_path / "out")))
    assert (verified.errors, verified.tensors) == ([], 2)
    assert without_places(read_folder(tmp_path / "out")) == tensors
    if size is None:
        expected = "model.safetensors" if name in ODD_SINGLE_FILES else name
        assert [file.path for file in result.files] == [expected]


@pytest.mark.parametrize("index", [".safetensors.index.json", ".x.safetensors.index.json", "x.safetensors.index.json"])
def test_an_index_is_found_in_the_new_folder_whatever_it_was_called(tmp_path: Path, index: str) -> None:
    write_sharded(tmp_path / "in", [{"a": made("U8", 9)}, {"b": made("U8", 8)}])
    (tmp_path / "in" / "model.safetensors.index.json").rename(tmp_path / "in" / index)
    for size in (None, MIB):
        target = tmp_path / f"out-{size}"
        run(tmp_path / "in" / index, target, shard_size_bytes=size)
        verified = verify(VerifyOptions(str(target)))
        assert (verified.errors, verified.tensors) == ([], 2)


NOT_TEXT = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_name_of_weights_that_is_not_text_is_refused_in_the_plan(tmp_path: Path, dry_run: bool) -> None:
    write_shard(tmp_path / "in" / f"{NOT_TEXT}.safetensors", {"a": made("U8", 9)})
    with pytest.raises(InputError, match="is not text in UTF-8") as caught:
        run(tmp_path / "in", tmp_path / "out", dry_run=dry_run)
    assert (caught.value.exit_code, caught.value.hint) == (4, "rename the file, and repack again")
    assert not (tmp_path / "out").exists()


def test_a_sidecar_whose_name_is_not_text_comes_along(source: Path, tmp_path: Path) -> None:
    (source / f"{NOT_TEXT}.txt").write_text("x")
    assert f"{NOT_TEXT}.txt" in run(source, tmp_path / "out").sidecars
    assert (tmp_path / "out" / f"{NOT_TEXT}.txt").read_text() == "x"


@pytest.mark.parametrize("folder", ["coldctl.json", "model.safetensors"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_names_that_collide_are_refused_in_the_plan(source: Path, tmp_path: Path, folder: str, dry_run: bool) -> None:
    (source / folder / "deep").mkdir(parents=True)
    (source / folder / "deep" / "notes.txt").write_text("x")
    with pytest.raises(RefusedError, match=f"a file has to be called {folder}"):
        run(source, tmp_path / "out", shard_size_bytes=1 << 40, dry_run=dry_run)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_a_folder_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "sub").write_text("mine")
    with pytest.raises(RefusedError, match=r"sub in .* is a file, and a folder has to go there"):
        run(source, tmp_path / "target", force=True)
    assert contents(tmp_path / "target") == {"sub": b"mine"}


def test_what_only_looks_like_a_temporary_is_noted_and_not_in_the_way(source: Path, tmp_path: Path) -> None:
    class Notes(Events):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def note(self, message: str) -> None:
            self.messages.append(message)

    (tmp_path / "target" / ".coldctl-1.tmp" / "mine").mkdir(parents=True)
    notes = Notes()
    repack(RepackOptions(str(source), str(tmp_path / "target")), notes)
    assert [message for message in notes.messages if message.startswith(".coldctl-1.tmp in")]
    assert not verify(VerifyOptions(str(tmp_path / "target"))).errors


def test_force_replaces_a_checkpoint_of_another_split_and_keeps_what_is_not_of_it(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run(source, target, shard_size_bytes=20_000)
    (target / "notes.txt").write_text("mine")
    (target / "config.json").write_text("old")
    run(source, target, force=True)
    run(source, tmp_path / "fresh")
    assert contents(target) == contents(tmp_path / "fresh") | {"notes.txt": b"mine"}


def test_the_stale_index_of_an_old_checkpoint_does_not_outlive_it(tmp_path: Path) -> None:
    write_sharded(tmp_path / "target", [{"old": made("U8", 3)}, {"older": made("U8", 3)}])
    write_shard(tmp_path / "source" / "model.safetensors", {"new": made("U8", 3)})
    run(tmp_path / "source", tmp_path / "target", force=True)
    assert sorted(contents(tmp_path / "target")) == ["coldctl.json", "model.safetensors"]


def test_a_dry_run_writes_nothing_and_foresees_everything(source: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    foreseen = run(source, tmp_path / "new" / "target", align="every", dry_run=True)
    assert snapshot(tmp_path) == before
    done = run(source, tmp_path / "new" / "target", align="every")
    assert foreseen.dry_run
    for field in ("bytes", "tensors", "aligned_tensors", "aligned_bytes", "fillers", "every_adds_fillers", "sidecars",
                  "skipped", "removed", "refused_by"):  # fmt: skip
        assert getattr(foreseen, field) == getattr(done, field)
    assert [(f.path, f.size_bytes) for f in foreseen.files] == [(f.path, f.size_bytes) for f in done.files]
    assert [f.extents_reason for f in foreseen.files] == ["not written: a dry run"] * 2
    assert [f.preallocated for f in foreseen.files] == [None, None]


def test_a_dry_run_is_refused_as_the_run_would_be(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / ".hidden").write_text("mine")
    with pytest.raises(RefusedError, match="is not empty"):
        run(source, tmp_path / "target", dry_run=True)
    run(source, tmp_path / "target", dry_run=True, force=True)
    assert contents(tmp_path / "target") == {".hidden": b"mine"}


def test_a_target_without_room_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    few = list(real)
    few[4] = MIB // real.f_frsize  # f_bavail: the tensors alone have more than a MiB
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(few))
    for dry_run in (True, False):
        with pytest.raises(NoSpaceError, match=r"has 1\.0 MiB free, and the new checkpoint needs") as caught:
            run(source, tmp_path / "new" / "target", dry_run=dry_run)
        assert caught.value.exit_code == 6
    assert not (tmp_path / "new").exists()


def test_a_broken_source_is_refused_before_the_target_is_made(tmp_path: Path) -> None:
    path = tmp_path / "source" / "model.safetensors"
    write_shard(path, {"a": made("U8", 100)})
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(FaultError) as caught:
        run(tmp_path / "source", tmp_path / "target")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "target").exists()
    with pytest.raises(InputError):
        run(tmp_path / "nowhere", tmp_path / "target")


@pytest.mark.parametrize(
    "options",
    [{"align": "pages"}, {"order": "size"}, {"shard_size_bytes": 0}, {"loader": "nobody"}],
)
def test_options_that_make_no_sense_are_refused(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run(source, tmp_path / "target", **options)
    assert not (tmp_path / "target").exists()


def test_a_target_named_like_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named like a file"):
        run(source, tmp_path / "new.safetensors")


def test_a_loader_that_refuses_fillers_stops_every_but_not_page(source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text('{"model_type": "gemma2"}')
    with pytest.raises(RefusedError, match=r"sglang .* is known to fail on fillers in a model of type gemma2"):
        run(source, tmp_path / "target", align="every", loader="sglang")
    assert not (tmp_path / "target").exists()
    assert "sglang" in run(source, tmp_path / "page", loader="sglang").refused_by
    run(source, tmp_path / "every", align="every", loader="vllm")


class StoppingAt(Events):
    """A signal that arrives with the call of that number."""

    def __init__(self, number: int) -> None:
        self._left = number

    def raise_if_stopped(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise StoppedError(15)


@pytest.mark.parametrize("number", range(1, 6))
def test_a_stopped_repack_leaves_nothing(source: Path, tmp_path: Path, number: int) -> None:
    with pytest.raises(StoppedError):
        repack(RepackOptions(str(source), str(tmp_path / "new" / "target")), StoppingAt(number))
    assert not (tmp_path / "new").exists()


def test_the_result_says_how_it_went(source: Path, tmp_path: Path) -> None:
    result = run(source, tmp_path / "target")
    assert (result.source, result.target) == (str(source), str(tmp_path / "target"))
    assert (result.align, result.order, result.dry_run) == ("page", "name", False)
    assert [file.path for file in result.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert all(file.preallocated for file in result.files)
    assert result.seconds > 0
    assert 0 <= result.peak_anon_bytes < 200 * MIB


def test_random_checkpoints_come_through(tmp_path: Path) -> None:
    for seed in range(15):
        chance = random.Random(seed)
        shards = [
            {
                f"m.layers.{chance.randrange(4)}.{shard}.{n}": made("U8", chance.choice([0, 1, 255, 4096, 5000, 8192]))
                for n in range(chance.randrange(1, 12))
            }
            for shard in range(chance.randrange(1, 4))
        ]
        source, target = tmp_path / f"s{seed}", tmp_path / f"t{seed}"
        write_sharded(source, shards)
        run(
            source,
            target,
            align=chance.choice(ALIGNS),
            order=chance.choice(ORDERS),
            shard_size_bytes=chance.choice([None, 5000, 100_000]),
        )
        assert without_places(read_folder(target)) == {n: t for shard in shards for n, t in shard.items()}
        assert not verify(VerifyOptions(str(target))).errors
