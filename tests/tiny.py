"""Small checkpoints, written and read back with struct and json alone, and what a folder holds, for comparisons."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BITS = {"BOOL": 8, "U8": 8, "F4": 4, "F6_E2M3": 6, "F8_E4M3": 8, "F16": 16, "BF16": 16, "F32": 32, "I64": 64, "C64": 64}


class Made(NamedTuple):
    """A tensor as a test made it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Stored(NamedTuple):
    """A tensor as a file holds it; `offset` counts from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    offset: int


Tensors = Mapping[str, Made]


def made(dtype: str, *shape: int, seed: int = 0) -> Made:
    """A tensor of bytes that are random and depend on the seed."""
    bits = math.prod(shape) * BITS[dtype]
    assert bits % 8 == 0
    return Made(dtype, shape, random.Random(repr((seed, dtype, shape))).randbytes(bits // 8))


def shard_bytes(tensors: Tensors, metadata: dict[str, str] | None = None, pad: int = 0) -> bytes:
    """A safetensors file of `tensors` in the order given, its JSON followed by `pad` spaces."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end + len(tensor.data)],
        }
        end += len(tensor.data)
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values())


def write_shard(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shard_bytes(tensors, metadata))


def write_sharded(
    folder: Path, shards: Sequence[Tensors], metadata: Sequence[dict[str, str] | None] | dict[str, str] | None = None
) -> list[Path]:
    """A numbered set of shards with an index. `metadata` is that of every shard, or one entry for each."""
    paths = [folder / f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    each = [metadata] * len(shards) if metadata is None or isinstance(metadata, dict) else metadata
    for path, tensors, own in zip(paths, shards, each, strict=True):
        write_shard(path, tensors, own)
    weight_map = {name: path.name for path, tensors in zip(paths, shards, strict=True) for name in tensors}
    total = sum(len(tensor.data) for tensors in shards for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return paths


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the data of a file begins, and its header's JSON."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return 8 + length, json.loads(raw[8 : 8 + length])


def read_shard(path: Path) -> dict[str, Stored]:
    """The tensors of a file in the order of its header."""
    raw = path.read_bytes()
    data_begins, header = header_of(path)
    stored = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (data_begins + offset for offset in entry["data_offsets"])
            stored[name] = Stored(entry["dtype"], tuple(entry["shape"]), raw[begin:end], begin)
    return stored


def read_folder(folder: Path) -> dict[str, Stored]:
    """The tensors of all files in a folder, fillers left out; no name twice."""
    stored: dict[str, Stored] = {}
    for path in sorted(folder.glob("**/*.safetensors")):
        for name, tensor in read_shard(path).items():
            if not name.startswith("_coldctl_pad."):
                assert name not in stored
                stored[name] = tensor
    return stored


def without_places(stored: Mapping[str, Stored]) -> dict[str, Made]:
    return {name: Made(tensor.dtype, tensor.shape, tensor.data) for name, tensor in stored.items()}


def snapshot(folder: Path) -> dict[str, tuple[str, int, int, str]]:
    """Everything below a folder: kind and mode, size, mtime in ns, digest (or where a link leads)."""
    seen = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        seen[str(path.relative_to(folder))] = (oct(status.st_mode), status.st_size, status.st_mtime_ns, content)
    return seen


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, hidden ones too, by relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
