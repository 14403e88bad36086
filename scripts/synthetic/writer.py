"""Shards, index and config.json, written block by block as the safetensors library would lay them out."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from scripts.synthetic.dtypes import LAYOUT_RANK
from scripts.synthetic.tensors import Tensor, total_bytes
from scripts.synthetic.values import random_blocks


def write_model(
    folder: Path, config: dict[str, Any], tensors: list[Tensor], shard_bytes: int, *, seed: int, sparse: bool
) -> list[Path]:
    """Write all files of the checkpoint into `folder` (made when missing) and return its weight files in order."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    shards = into_shards(tensors, shard_bytes)
    if len(shards) == 1:
        paths = [folder / "model.safetensors"]
    else:
        paths = [folder / f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        weight_map = {tensor.name: path.name for path, shard in zip(paths, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total_bytes(tensors)}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / "model.safetensors.index.json", index)
    for path, shard in zip(paths, shards, strict=True):
        write_shard(path, shard, seed=seed, sparse=sparse)
    return paths


def into_shards(tensors: Iterable[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    """Tensors in model order, a new shard wherever the next one would not fit; none is ever split."""
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def in_file_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: (LAYOUT_RANK[tensor.dtype], tensor.name))


def header_of(tensors: Iterable[Tensor]) -> bytes:
    """Length and JSON of a file with `tensors` in this order, padded to 8 bytes as the safetensors library does."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_shard(path: Path, tensors: list[Tensor], *, seed: int, sparse: bool) -> None:
    ordered = in_file_order(tensors)
    header = header_of(ordered)
    with path.open("wb") as file:
        file.write(header)
        if sparse:
            file.truncate(len(header) + total_bytes(ordered))
        else:
            write_data(file, ordered, seed)


def write_data(file: BinaryIO, tensors: Iterable[Tensor], seed: int) -> None:
    for tensor in tensors:
        for block in random_blocks(tensor, seed):
            file.write(block)


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
