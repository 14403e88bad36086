"""What tests of loads share: checkpoints with every kind of tensor, the library's reading of them, and footprints."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open

from coldctl.events import Events
from coldctl.loader.host.memory import rss_anon_bytes
from tests.tiny import Made, Tensors, made, read_folder, shard_bytes

_libc = ctypes.CDLL(None)
# Blocks from 128 KiB on go back to the kernel at once. By default the C library keeps more, the more it was asked for.
_libc.mallopt(-3, 128 << 10)

MIB = 1 << 20
PATIENCE_SECONDS = 20.0

NUMPY_HAS_NOT = {torch.bfloat16: np.uint16, torch.float8_e4m3fn: np.uint8, torch.float4_e2m1fn_x2: np.uint8}


def save(path: Path, tensors: Tensors, *, boundary: int = 8, past: int = 0) -> None:
    """A safetensors file whose first tensor begins `past` bytes after a multiple of `boundary`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header_bytes = len(shard_bytes(tensors)) - sum(len(tensor.data) for tensor in tensors.values())
    path.write_bytes(shard_bytes(tensors, pad=(past - header_bytes) % boundary))


def save_sparse(path: Path, sizes: Mapping[str, int]) -> None:
    """A file of U8 tensors of zeros that takes no room on the disk, its data from the first page on."""
    entries, end = {}, 0
    for name, nbytes in sizes.items():
        entries[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def layer(number: int) -> dict[str, Made]:
    """A layer of 1.6 MiB: with two ranks, rows of o_proj are 4 KiB and more long, those of down_proj are shorter."""
    at = f"model.layers.{number}"
    return {
        f"{at}.input_layernorm.weight": made("BF16", 64, seed=number),
        f"{at}.self_attn.q_proj.weight": made("BF16", 96, 1024, seed=number),
        f"{at}.self_attn.k_proj.weight": made("BF16", 32, 1024, seed=number),
        f"{at}.self_attn.v_proj.weight": made("BF16", 32, 1024, seed=number),
        f"{at}.self_attn.o_proj.weight": made("BF16", 64, 4096, seed=number),
        f"{at}.mlp.gate_proj.weight": made("F32", 64, 512, seed=number),
        f"{at}.mlp.up_proj.weight": made("F32", 64, 512, seed=number),
        f"{at}.mlp.down_proj.weight": made("F32", 256, 512, seed=number),
    }


def experts(number: int, count: int) -> dict[str, Made]:
    at = f"model.layers.{number}.block_sparse_moe.experts"
    return {f"{at}.{n}.{w}.weight": made("F16", 32, 64, seed=n) for n in range(count) for w in ("w1", "w2", "w3")}


ODD = {
    "odd.packed": made("F4", 6, 10),
    "odd.packed flat": made("F4", 6),
    "odd.empty first": made("F32", 0, 4),
    "odd.float8": made("F8_E4M3", 33, 7),
    "odd.scale": made("F32"),
    "odd.bools": Made("BOOL", (5,), bytes([0, 1, 1, 0, 1])),
    "odd.long": made("I64", 3, 3),
    "odd.complex": made("C64", 2),
    "odd.large": made("BF16", 3, 1024, 1024),
    "odd.byte": made("U8", 1),
    "odd.empty": made("I64", 0),
}
"""Dtypes and sizes of which hardly one lies on its own boundary."""


def save_mixed(folder: Path) -> None:
    """Layers on their boundaries, odd tensors on none of theirs, a file whose data begins on a page, and one of nothing
    but empty tensors."""
    embedding = {"model.embed_tokens.weight": made("BF16", 512, 1024)}
    last = {"lm_head.weight": made("BF16", 512, 1024, seed=9), "model.norm.weight": made("BF16", 64)}
    shards: list[tuple[dict[str, Made], int, int]] = [
        (embedding | layer(0) | layer(1) | experts(1, 4), 8, 0),
        (ODD, 8, 3),
        (layer(2) | last, 4096, 0),
        ({"nothing": made("F32", 0, 3)}, 8, 0),
    ]
    weight_map: dict[str, str] = {}
    for number, (tensors, boundary, past) in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-00004.safetensors"
        save(folder / name, tensors, boundary=boundary, past=past)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def library(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder as the safetensors library reads them."""
    read: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            read |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return read


def bits(tensor: Any) -> bytes:
    """The bytes of a tensor of torch or numpy, row by row."""
    if isinstance(tensor, torch.Tensor):
        return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""
    return bytes(tensor.tobytes())


def assert_same(loaded: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> None:
    """The same names, dtypes (numpy's where it has them), shapes and bits."""
    assert sorted(loaded) == sorted(expected)
    for name, theirs in expected.items():
        ours = loaded[name]
        shape = tuple(theirs.shape)
        if theirs.dtype is torch.float4_e2m1fn_x2:
            theirs = theirs.view(torch.uint8)
        if isinstance(ours, torch.Tensor):
            assert (ours.dtype, tuple(ours.shape)) == (theirs.dtype, shape), name
            assert ours.is_contiguous(), name
        else:
            dtype = NUMPY_HAS_NOT.get(theirs.dtype) or torch.empty(0, dtype=theirs.dtype).numpy().dtype
            assert (ours.dtype, ours.shape) == (np.dtype(dtype), shape), name
        assert bits(ours) == bits(theirs), name


def assert_same_as_the_files(loaded: Mapping[str, Any], folder: Path, names: Iterable[str] | None = None) -> None:
    """The bits of the files, read without any library."""
    stored = read_folder(folder)
    assert sorted(loaded) == sorted(stored if names is None else names)
    for name, tensor in loaded.items():
        assert bits(tensor) == stored[name].data, name


class Footprint(NamedTuple):
    """What a process holds. `files` maps of files below a folder, `descriptors` all that are open."""

    anon_bytes: int
    mappings: int
    files: int
    descriptors: int
    threads: int


def footprint(folder: Path, *, collect: bool = True) -> Footprint:
    if collect:
        gc.collect()
    _libc.malloc_trim(0)  # what the C library keeps of freed memory is nobody's
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = sum(str(folder) in line for line in maps)
    descriptors = len(os.listdir("/proc/self/fd"))
    return Footprint(rss_anon_bytes(), len(maps), files, descriptors, threading.active_count())


def assert_given_back(before: Footprint, folder: Path, *, within_bytes: int = 2 * MIB, collect: bool = True) -> None:
    """Nothing is held that was not before; stacks of threads and the C library's own memory have some room."""
    after = footprint(folder, collect=collect)
    assert after.anon_bytes - before.anon_bytes < within_bytes
    assert (after.files, after.descriptors, after.threads) == (before.files, before.descriptors, before.threads)
    assert after.mappings - before.mappings <= 16


class Gate(Events):
    """Events that hold a load until `open`: where its part number `part` begins, or after a chunk of it."""

    def __init__(self, part: int, *, after_a_chunk: bool = False) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        self._part = part
        self._after_a_chunk = after_a_chunk
        self._begun = -1

    def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
        self._begun += label == "loading"
        if label == "loading" and not self._after_a_chunk:
            self._hold()

    def advance(self, nbytes: int) -> None:  # noqa: ARG002
        if self._after_a_chunk:
            self._hold()

    def open(self) -> None:
        self._opened.set()

    def _hold(self) -> None:
        if self._begun == self._part:
            self.reached.set()
            assert self._opened.wait(PATIENCE_SECONDS), "nobody opened the gate"
