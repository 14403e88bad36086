"""Which tensors go into which new shard, and where in it: the plan of a repack, made before a byte is written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from coldctl.errors import RefusedError
from coldctl.jobs.repack.names import of_index, of_only_file, stem
from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import Align, Placed, arrange, is_filler
from coldctl.loader.order import Named, Order, sort_key
from coldctl.loader.writer import NewShard, lay_out

Member = tuple[Shard, Tensor]
"""A tensor of the source, and the shard that holds it."""

_Key = Callable[[Named], tuple[int | bytes, ...]]


def plan_shards(checkpoint: Checkpoint, align: Align, order: Order, shard_size_bytes: int | None) -> list[NewShard]:
    """The shards to write: the old ones arranged anew or, with `shard_size_bytes`, cut anew.

    Raises FaultError when a header would pass the format's cap, RefusedError when shards whose metadata disagree
    would be merged.
    """
    key = _key(checkpoint, order)
    cut = _cut(checkpoint, order, shard_size_bytes)
    if of_index(checkpoint, len(cut)) is None:
        ((name, members, metadata),) = cut
        cut = [(of_only_file(name), members, metadata)]
    return [
        lay_out(name, _arranged(members, align, key, number), metadata)
        for number, (name, members, metadata) in enumerate(cut, start=1)
    ]


def reading_order(shard: NewShard, checkpoint: Checkpoint) -> list[Member]:
    """The tensors of the new shard in the order in which the old shards hold them: one pass over the disk."""
    numbers = {old.name: number for number, old in enumerate(checkpoint.shards)}
    members = [
        (checkpoint.shards[numbers[home.source]], home.placed.source)
        for home in shard.homes
        if home.source is not None and home.placed.source is not None
    ]
    return sorted(members, key=lambda member: (numbers[member[0].name], member[1].offset_bytes, member[1].nbytes))


def _cut(
    checkpoint: Checkpoint, order: Order, shard_size_bytes: int | None
) -> list[tuple[str, list[Member], dict[str, str] | None]]:
    """Name, tensors and metadata of each new shard. Fillers of an earlier repack stay behind."""
    if shard_size_bytes is None:
        return [
            (shard.name, [(shard, t) for t in shard.header.tensors if not is_filler(t)], shard.header.metadata)
            for shard in checkpoint.shards
        ]
    members = [member for member in plan.ordered_tensors(checkpoint, order) if not is_filler(member[1])]
    runs = _runs(members, shard_size_bytes)
    if len(runs) == 1:
        name = f"{stem(checkpoint)}.safetensors"
        return [(name, runs[0], _united_metadata(checkpoint.shards, name))]
    names = [f"{stem(checkpoint)}-{n:05d}-of-{len(runs):05d}.safetensors" for n in range(1, len(runs) + 1)]
    return [
        (name, run, _united_metadata({shard.name: shard for shard, _ in run}.values(), name))
        for name, run in zip(names, runs, strict=True)
    ]


def _runs(members: list[Member], shard_size_bytes: int) -> list[list[Member]]:
    """Runs of at most `shard_size_bytes` of data; a tensor that is larger stands alone."""
    runs: list[list[Member]] = [[]]
    run_bytes = 0
    for member in members:
        if runs[-1] and run_bytes + member[1].nbytes > shard_size_bytes:
            runs.append([])
            run_bytes = 0
        runs[-1].append(member)
        run_bytes += member[1].nbytes
    return runs


def _united_metadata(shards: Collection[Shard], name: str) -> dict[str, str] | None:
    united: dict[str, str] = {}
    for shard in shards:
        for key, value in (shard.header.metadata or {}).items():
            if united.setdefault(key, value) != value:
                raise RefusedError(
                    f"cannot merge shards into {name}: their metadata disagree on {key!r} (see {shard.name})",
                    hint="repack without --shard-size, which keeps the shards and their metadata",
                )
    return united if any(shard.header.metadata is not None for shard in shards) else None


def _arranged(members: list[Member], align: Align, key: _Key, number: int) -> list[tuple[Placed, str | None]]:
    sources = {tensor.name: shard.name for shard, tensor in members}
    placed = arrange([tensor for _, tensor in members], align, key, number)
    return [(tensor, sources[tensor.name] if tensor.source else None) for tensor in placed]


def _key(checkpoint: Checkpoint, order: Order) -> _Key:
    key = sort_key(order, checkpoint.tensors())
    if order != "file":
        return key
    numbers = {t.name: number for number, shard in enumerate(checkpoint.shards) for t in shard.header.tensors}
    return lambda tensor: (numbers[tensor.name], *key(tensor))
