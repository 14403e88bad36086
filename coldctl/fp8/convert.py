"""The second pass: a checkpoint as it will be, and the sink that makes FP8 of what is read for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coldctl.errors import RefusedError
from coldctl.fp8.weight import Scaled, Weight
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Tensor
from coldctl.loader.reader import PIECE_BYTES
from coldctl.loader.sink import Sink
from coldctl.loader.source import Source

_Key = tuple[str, str]
_Member = tuple[Shard, Tensor]


def converted(checkpoint: Checkpoint, weights: list[Weight]) -> Checkpoint:
    """`checkpoint` as it will be: FP8 in place of the targets, each with its scales beside it.

    Raises RefusedError where a tensor has the name of a scale already.
    """
    taken = {tensor.name for tensor in checkpoint.tensors()}
    for weight in weights:
        if weight.scale_name in taken:
            raise RefusedError(
                f"there is a tensor {weight.scale_name} already, and the scales of {weight.name} need that name",
                hint="quantise from the original checkpoint",
            )
    by_key = {weight.key: weight for weight in weights}
    return replace(checkpoint, shards=tuple(_converted_shard(shard, by_key) for shard in checkpoint.shards))


def _converted_shard(shard: Shard, weights: Mapping[_Key, Weight]) -> Shard:
    tensors: list[Tensor] = []
    for tensor in shard.header.tensors:
        weight = weights.get((shard.name, tensor.name))
        if weight is None:
            tensors.append(tensor)
        else:
            tensors += [weight.codes] if weight.scale is None else [weight.codes, weight.scale]
    return replace(shard, header=replace(shard.header, tensors=tuple(tensors)))


class Fp8Conversion:
    """What becomes of the tensors of `checkpoint` between the old shards and the new ones: see
    `coldctl.jobs.repack.rewrite.Conversion`."""

    def __init__(self, checkpoint: Checkpoint, scaled: list[Scaled]) -> None:
        self._scaled = {each.weight.key: each for each in scaled}
        self._originals = {
            (shard.name, tensor.name): (shard, tensor) for shard in checkpoint.shards for tensor in shard.header.tensors
        }

    def originals(self, members: list[_Member]) -> list[_Member]:
        """Scales have none: they come with the first piece of their weight."""
        found = (self._originals.get((shard.name, tensor.name)) for shard, tensor in members)
        return [original for original in found if original is not None]

    def into(self, sink: Sink) -> Sink:
        return _Encoding(sink, self._scaled)


class _Encoding:
    """A sink that gives its own sink FP8 in place of the weights, and their scales."""

    def __init__(self, sink: Sink, scaled: Mapping[_Key, Scaled]) -> None:
        self._sink = sink
        self._scaled = scaled

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:
        scaled = self._scaled.get((source.name, tensor.name))
        if scaled is None:
            self._sink.accept(source, tensor, start_bytes, piece)
            return
        if start_bytes == 0:
            self._hand_out_scales(source, scaled)
        first_value = start_bytes // scaled.weight.element_bytes
        codes = scaled.encode(scaled.weight.values_in(piece), first_value)
        self._sink.accept(source, scaled.weight.codes, first_value, codes.data)

    def _hand_out_scales(self, source: Source, scaled: Scaled) -> None:
        scale, data = scaled.weight.scale, memoryview(scaled.scale_bytes)
        if scale is not None:
            for start_bytes in range(0, len(data), PIECE_BYTES):
                self._sink.accept(source, scale, start_bytes, data[start_bytes : start_bytes + PIECE_BYTES])
