"""Folders: (name, verdict, rule, tensor, part of the message or hint, files by name)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.anomaly.hostile import GOOD, INPUT_ERROR, Content, entry, fifo, file_of, folder_with, link_to

Row = tuple[str, str, str | None, str | None, str, Mapping[str, Content]]

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
_A, _B = file_of({"a": entry(0, 4)}), file_of({"b": entry(0, 4)})
_SHARDS: dict[str, Content] = {ONE: _A, TWO: _B}
_MAP = {"a": ONE, "b": TWO}
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 77\n"


def index(weight_map: object = _MAP, total: object = 8) -> bytes:
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode()


def _reject(name: str, rule: str, files: Mapping[str, Content], tensor: str | None = None, says: str = "") -> Row:
    return (name, "reject", rule, tensor, says, files)


def _accept(name: str, files: Mapping[str, Content], rule: str | None = None, says: str = "") -> Row:
    return (name, "accept", rule, None, says, files)


def _shard_b_called(name: str) -> dict[str, Content]:
    """The control folder, but the index calls the second shard `name`."""
    return {ONE: _A, TWO: _B, INDEX: index({"a": ONE, "b": name})}


_INDEX_FILE = [
    _accept("control", {**_SHARDS, INDEX: index()}),
    _accept("no_metadata", {**_SHARDS, INDEX: json.dumps({"weight_map": _MAP}).encode()}),
    _accept("other_index_name", {**_SHARDS, "diffusion_pytorch_model.safetensors.index.json": index()}),
    _accept("main_index_of_two", {**_SHARDS, INDEX: index(), "x.safetensors.index.json": b"junk"}),
    _accept("total_wrong", {**_SHARDS, INDEX: index(total=12345)}, "index.total-size", "12,345"),
    _accept("total_float", {**_SHARDS, INDEX: index(total=8.0)}, "index.total-size"),
    _accept("total_string", {**_SHARDS, INDEX: index(total="8")}, "index.total-size"),
    _accept("total_bool", {**_SHARDS, INDEX: index(total=True)}, "index.total-size"),
    _reject("index_cut", "index.json", {**_SHARDS, INDEX: index()[:-5]}),
    _reject("index_array", "index.json", {**_SHARDS, INDEX: b"[]"}),
    _reject("index_null", "index.json", {**_SHARDS, INDEX: b"null"}),
    _reject("index_empty", "index.json", {**_SHARDS, INDEX: b""}, says="empty"),
    _reject("index_lfs", "index.json", {**_SHARDS, INDEX: _LFS}, says="git-lfs pointer"),
    _reject("index_html", "index.json", {**_SHARDS, INDEX: b"<html>"}, says="HTML"),
    _reject("index_bom", "index.json", {**_SHARDS, INDEX: b"\xef\xbb\xbf" + index()}),
    _reject("index_latin1", "index.utf8", {**_SHARDS, INDEX: index().replace(b'"a"', b'"\xe9"')}),
    _reject("index_surrogate", "index.utf8", {**_SHARDS, INDEX: index({"a": ONE, "b": TWO, "\ud800": TWO})}),
    _reject("index_surrogate_shard", "index.utf8", _shard_b_called("\udce9.safetensors")),
    _reject("index_nan", "index.json", {**_SHARDS, INDEX: index(total=float("nan"))}, says="NaN"),
    _reject("index_deep", "index.json", {**_SHARDS, INDEX: b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}"}),
    _reject("index_deep_objects", "index.json", {**_SHARDS, INDEX: b'{"a":' * 100_000 + b"1" + b"}" * 100_000}),
    _reject("index_is_folder", "file.not-regular", {**_SHARDS, INDEX: folder_with("x")}),
    _reject("index_is_fifo", "file.not-regular", {**_SHARDS, INDEX: fifo}),
    _reject("index_link_to_nothing", "file.dangling-link", {**_SHARDS, INDEX: link_to("gone")}),
    _reject("index_link_loop", "file.link-loop", {**_SHARDS, INDEX: link_to(INDEX)}),
    _reject(
        "two_indexes",
        INPUT_ERROR,
        {**_SHARDS, "x.safetensors.index.json": index(), "y.safetensors.index.json": index()},
        says="y.safetensors.index.json",
    ),
    _reject(
        "metadata_list", "index.metadata", {**_SHARDS, INDEX: json.dumps({"metadata": [], "weight_map": _MAP}).encode()}
    ),
    _reject("no_weight_map", "index.weight-map", {**_SHARDS, INDEX: b'{"metadata":{}}'}),
    _reject("weight_map_list", "index.weight-map", {**_SHARDS, INDEX: index([ONE])}),
    _reject("weight_map_empty", "index.weight-map", {**_SHARDS, INDEX: index({})}),
    _reject("value_number", "index.weight-map", {**_SHARDS, INDEX: index({"a": ONE, "b": 2})}, "b"),
    _reject("value_list", "index.weight-map", {**_SHARDS, INDEX: index({"a": ONE, "b": [TWO]})}, "b"),
    _reject("value_null", "index.weight-map", {**_SHARDS, INDEX: index({"a": ONE, "b": None})}, "b"),
    _reject("reserved_name", "index.reserved-name", {**_SHARDS, INDEX: index({**_MAP, "__metadata__": ONE})}),
    _reject(
        "index_name_twice",
        "index.duplicate-key",
        {**_SHARDS, INDEX: f'{{"weight_map":{{"a":"{ONE}","b":"{ONE}","b":"{TWO}"}}}}'.encode()},
        "b",
    ),
    _reject(
        "weight_map_twice",
        "index.duplicate-key",
        {**_SHARDS, INDEX: b'{"weight_map":{},"weight_map":' + json.dumps(_MAP).encode() + b"}"},
        says="weight_map",
    ),
]

_SHARD_NAMES = [
    *(
        _reject(f"shard_name_{what}", "index.shard-name", {**_shard_b_called(name), "../outside.safetensors": _B})
        for what, name in {
            "dotdot": "../outside.safetensors",
            "inner_dotdot": f"sub/../{TWO}",
            "absolute": "/outside.safetensors",
            "backslash": "..\\outside.safetensors",
            "drive": "C:outside.safetensors",
            "nul": f"{TWO}\0.safetensors",
            "empty": "",
            "dot": f"./{TWO}",
            "double_slash": f"sub//{TWO}",
            "trailing_slash": f"{TWO}/",
            "many_steps": "a/" * 100_000 + TWO,
        }.items()
    ),
    _reject("shard_name_long", "file.name-too-long", _shard_b_called("n" * 300 + ".safetensors")),
    _reject("shard_name_5000", "index.shard-name", _shard_b_called("n" * 5000 + ".safetensors")),
    _reject("shard_name_escape", "index.missing-shard", _shard_b_called("\x1b[31mx.safetensors")),
    _reject("shard_name_newline", "index.missing-shard", _shard_b_called("x\nok.safetensors")),
    _reject("shard_name_bin", "index.not-safetensors", _shard_b_called("pytorch_model.bin")),
    _reject("shard_name_upper_case", "index.not-safetensors", _shard_b_called("MODEL.SAFETENSORS")),
    _reject(
        "subfolder_is_link",
        "index.shard-name",
        {ONE: _A, "real/x.safetensors": _B, "sub": link_to("real"), INDEX: index({"a": ONE, "b": "sub/x.safetensors"})},
        says="linked folder",
    ),
    _accept(
        "subfolder",
        {ONE: _A, "sub/x.safetensors": _B, INDEX: index({"a": ONE, "b": "sub/x.safetensors"})},
        "index.subfolder",
    ),
]

_SHARD_FILES = [
    _reject("shard_missing", "index.missing-shard", {ONE: _A, INDEX: index()}, says=TWO),
    _reject(
        "shard_unfinished",
        "index.missing-shard",
        {ONE: _A, f"{TWO}.incomplete": b"x", INDEX: index()},
        says=f"{TWO}.incomplete",
    ),
    _reject("shard_is_folder", "file.not-regular", {ONE: _A, TWO: folder_with("x"), INDEX: index()}, says="folder"),
    _reject("shard_is_fifo", "file.not-regular", {ONE: _A, TWO: fifo, INDEX: index()}, says="named pipe"),
    _reject("shard_is_device", "file.not-regular", {ONE: _A, TWO: link_to("/dev/zero"), INDEX: index()}),
    _reject("shard_link_loop", "file.link-loop", {ONE: _A, TWO: link_to(TWO), INDEX: index()}),
    _reject(
        "shard_link_to_nothing",
        "file.dangling-link",
        {ONE: _A, TWO: link_to("../blobs/gone"), INDEX: index()},
        says="blobs/gone",
    ),
    _reject("shard_truncated", "file.truncated", {ONE: _A, TWO: _B[:-1], INDEX: index()}, "b"),
    _reject("shard_empty", "header.too-short", {ONE: _A, TWO: b"", INDEX: index()}),
    _reject("shard_lfs", "header.length", {ONE: _A, TWO: _LFS, INDEX: index()}, says="77 bytes"),
    _reject("tensor_missing", "index.missing-tensor", {**_SHARDS, INDEX: index({**_MAP, "c": TWO})}, "c", TWO),
    _reject("tensor_unindexed", "index.unindexed-tensor", {**_SHARDS, INDEX: index({"b": TWO, "z": ONE})}, "a", ONE),
    _reject("tensors_swapped", "index.wrong-shard", {**_SHARDS, INDEX: index({"a": TWO, "b": ONE})}, "a", ONE),
    _reject(
        "tensor_twice",
        "folder.duplicate-tensor",
        {ONE: _A, TWO: file_of({"a": entry(0, 4), "b": entry(4, 8)}, 8), INDEX: index(total=12)},
        "a",
    ),
    _reject("stale_index", "index.stale", {"model.safetensors": GOOD, INDEX: index()}, says="0 of 2"),
    _reject("stale_beside_set", "index.stale", {"m-1-of-1.safetensors": GOOD, INDEX: index()}, says="m-1-of-1"),
    _accept(
        "consolidated_beside",
        {**_SHARDS, "consolidated.safetensors": GOOD, INDEX: index()},
        "folder.ignored",
        "consolidated",
    ),
    _accept("stray_shard", {**_SHARDS, "model-00001-of-00003.safetensors": b"junk", INDEX: index()}, "folder.ignored"),
    _accept("stray_fifo", {**_SHARDS, "x.safetensors": fifo, INDEX: index()}, "folder.ignored"),
    _accept("stray_unfinished", {**_SHARDS, "x.safetensors.part": b"", INDEX: index()}, "folder.incomplete"),
    _accept("torch_beside", {**_SHARDS, "pytorch_model.bin": b"junk", INDEX: index()}),
    _accept("link_to_own_folder", {**_SHARDS, "self": link_to("."), INDEX: index()}),
    _accept("hidden_and_temp", {**_SHARDS, ".x.safetensors": b"", ".coldctl-1.safetensors": b"", INDEX: index()}),
    _accept(
        "hub_cache",
        {
            "../blobs/aa": _A,
            "../blobs/bb": _B,
            "../blobs/cc": index(),
            ONE: link_to("../blobs/aa"),
            TWO: link_to("../blobs/bb"),
            INDEX: link_to("../blobs/cc"),
        },
    ),
]

_NO_INDEX = [
    _reject("nothing", INPUT_ERROR, {}, says="no safetensors"),
    _reject("torch_only", INPUT_ERROR, {"pytorch_model.bin": b"x"}, says="pytorch_model.bin"),
    _reject(
        "unfinished_only", INPUT_ERROR, {"model.safetensors.incomplete": b"x"}, says="model.safetensors.incomplete"
    ),
    _reject("hidden_only", INPUT_ERROR, {".model.safetensors": GOOD}),
    _reject("one_step_down", INPUT_ERROR, {"unet/model.safetensors": GOOD}, says="unet"),
    _reject("hub_entry", INPUT_ERROR, {"snapshots/1/model.safetensors": GOOD}, says="snapshots"),
    _reject("folder_called_weights", INPUT_ERROR, {"model.safetensors/x": b""}),
    _accept("single", {"model.safetensors": GOOD}),
    _accept("single_other_name", {"consolidated.safetensors": GOOD}),
    _accept("single_link", {"../blobs/dd": GOOD, "model.safetensors": link_to("../blobs/dd")}),
    _accept("single_and_set", {"model.safetensors": GOOD, **_SHARDS}, "folder.ignored", ONE),
    _accept("single_and_adapter", {"model.safetensors": GOOD, "adapter.safetensors": b"junk"}, "folder.ignored"),
    _accept("set", _SHARDS),
    _accept("set_of_wide_count", {"m-00001-of-000002.safetensors": _A, "m-00002-of-000002.safetensors": _B}),
    _accept("set_from_zero", {"m-00000-of-00002.safetensors": _A, "m-00001-of-00002.safetensors": _B}),
    _accept("set_and_stranger", {**_SHARDS, "consolidated.safetensors": GOOD}, "folder.ignored"),
    _reject("set_first_missing", "folder.missing-shard", {TWO: _B}, says=ONE),
    _reject(
        "set_of_a_billion", "folder.missing-shard", {"m-000000001-of-999999999.safetensors": _A}, says="999,999,998"
    ),
    _reject("set_unfinished", "folder.missing-shard", {ONE: _A, f"{TWO}.aria2": b""}, says=f"{TWO}.aria2"),
    _reject("set_number_beyond", "folder.shard-number", {**_SHARDS, "model-00003-of-00002.safetensors": GOOD}),
    _reject("two_sets", "folder.ambiguous", {**_SHARDS, "x-00001-of-00001.safetensors": GOOD}),
    _reject("set_names_twice", "folder.duplicate-tensor", {ONE: _A, TWO: _A}, "a"),
    _accept("strangers", {"x.safetensors": _A, "y.safetensors": _B}, "folder.no-index"),
    _reject("strangers_same_names", "folder.duplicate-tensor", {"x.safetensors": _A, "y.safetensors": _A}, "a"),
    _reject("only_a_fifo", "file.not-regular", {"model.safetensors": fifo}),
    _reject("only_a_dangling_link", "file.dangling-link", {"model.safetensors": link_to("../blobs/gone")}),
]

FOLDERS: list[Row] = [*_INDEX_FILE, *_SHARD_NAMES, *_SHARD_FILES, *_NO_INDEX]
