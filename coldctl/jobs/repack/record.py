"""What a repack writes down beside the shards: the index that loaders read, and the manifest that proves the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from blake3 import blake3

from coldctl.loader.format import manifest
from coldctl.loader.sink import Digests
from coldctl.loader.writer import NewShard


def index(shards: list[NewShard], metadata: Mapping[str, object] | None) -> bytes:
    """The index of `shards`: `metadata` of the old one with the new total_size, and every tensor, fillers included."""
    homes = {home.placed.name: (shard.name, home.placed.nbytes) for shard in shards for home in shard.homes}
    document = {
        "metadata": {**(metadata or {}), "total_size": sum(nbytes for _, nbytes in homes.values())},
        "weight_map": {name: homes[name][0] for name in sorted(homes)},
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def manifest_of(shards: list[NewShard], layout: manifest.Layout, digests: Digests) -> manifest.Manifest:
    """The manifest of `shards`, whose tensors `digests` has seen to the end."""
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        layout=layout,
        files=sorted((_file(shard, digests) for shard in shards), key=lambda file: file.path),
        tensors=sorted((entry for shard in shards for entry in _tensors(shard, digests)), key=manifest.position),
        fillers=sorted((entry for shard in shards for entry in _fillers(shard)), key=manifest.position),
        tied=[],
    )


def _file(shard: NewShard, digests: Digests) -> manifest.File:
    homes = sorted(shard.homes, key=lambda home: (home.offset_bytes, home.placed.nbytes, home.placed.name))
    in_file_order = [
        blake3(bytes(home.placed.nbytes)).digest()
        if home.source is None
        else digests.of[home.source, home.placed.name].b3
        for home in homes
    ]
    root_b3 = manifest.root_b3(shard.header, in_file_order)
    return manifest.File(shard.name, shard.size_bytes, len(shard.header), root_b3)


def _tensors(shard: NewShard, digests: Digests) -> list[manifest.Tensor]:
    return [
        manifest.Tensor(
            name=home.placed.name,
            dtype=home.placed.dtype,
            shape=home.placed.shape,
            file=shard.name,
            offset_bytes=home.offset_bytes,
            nbytes=home.placed.nbytes,
            b3=digests.of[home.source, home.placed.name].b3.hex(),
            block_sums=digests.of[home.source, home.placed.name].block_sums,
        )
        for home in shard.homes
        if home.source is not None
    ]


def _fillers(shard: NewShard) -> list[manifest.Filler]:
    return [
        manifest.Filler(home.placed.name, shard.name, home.offset_bytes, home.placed.nbytes)
        for home in shard.homes
        if home.source is None
    ]
