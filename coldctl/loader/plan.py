"""Which bytes, in which order: a checkpoint as an ordered list of segments, coalesced and chunked.

A segment is a contiguous run of bytes of one source. Segments for sinks that look at tensors hold whole tensors;
segments for the page cache are cut at chunk boundaries, since a page does not care whose byte it holds.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Tensor
from coldctl.loader.order import Order, sort_key
from coldctl.loader.source import Source
from coldctl.units import MIB

COALESCED_BYTES = 64 * MIB
CHUNK_BYTES = 64 * MIB


class Segment(NamedTuple):
    """`nbytes` of `source` from `offset_bytes`, and the whole tensors in them (none for a cut segment)."""

    source: Source
    offset_bytes: int
    nbytes: int
    tensors: tuple[Tensor, ...] = ()


def ordered_tensors(checkpoint: Checkpoint, order: Order) -> list[tuple[Shard, Tensor]]:
    """Every tensor with its shard. `name` and `file` go shard by shard; the other orders cross shards."""
    if order == "file":  # as headers keep them
        return [(shard, tensor) for shard in checkpoint.shards for tensor in shard.header.tensors]
    shard_numbers = {shard.name: number for number, shard in enumerate(checkpoint.shards)}
    by_shard = order == "name"
    key = sort_key(order, checkpoint.tensors())
    pairs = [(shard, tensor) for shard in checkpoint.shards for tensor in shard.header.tensors]
    pairs.sort(key=lambda pair: (shard_numbers[pair[0].name] if by_shard else 0, *key(pair[1])))
    return pairs


def tensor_segments(pairs: Iterable[tuple[Shard, Tensor]]) -> Iterator[Segment]:
    """Segments of whole tensors. Neighbours in both the order and the file are joined up to 64 MiB."""
    run: list[Tensor] = []
    run_shard: Shard | None = None
    for shard, tensor in pairs:
        if run and shard is run_shard and _continues(run, tensor):
            run.append(tensor)
            continue
        if run and run_shard:
            yield _segment(run_shard, run)
        run, run_shard = [tensor], shard
    if run and run_shard:
        yield _segment(run_shard, run)


def page_segments(checkpoint: Checkpoint, order: Order) -> Iterator[Segment]:
    """Segments that cover every byte of every shard, each header before the first tensor of its file.

    What follows itself in both the order and the file is one run, cut at multiples of 64 MiB of the file.
    """
    for run in runs(_headers_and_tensors(checkpoint, order)):
        yield from cut(run, CHUNK_BYTES)


def cut(segment: Segment, unit_bytes: int) -> Iterator[Segment]:
    """`segment` cut at every multiple of `unit_bytes` of its source."""
    start_bytes, end_bytes = segment.offset_bytes, segment.offset_bytes + segment.nbytes
    while start_bytes < end_bytes:
        stop_bytes = min(start_bytes - start_bytes % unit_bytes + unit_bytes, end_bytes)
        yield Segment(segment.source, start_bytes, stop_bytes - start_bytes)
        start_bytes = stop_bytes


def runs(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Neighbours that continue each other in their file, as one."""
    run: Segment | None = None
    for segment in segments:
        if run and segment.source is run.source and segment.offset_bytes == run.offset_bytes + run.nbytes:
            run = run._replace(nbytes=run.nbytes + segment.nbytes)
            continue
        if run:
            yield run
        run = segment
    if run:
        yield run


def only(segments: Iterable[Segment], missing: dict[str, list[tuple[int, int]]]) -> Iterator[Segment]:
    """The parts of `segments` in the `missing` ranges (offset and length, ascending) of their source, by its name."""
    starts = {name: [offset_bytes for offset_bytes, _ in ranges] for name, ranges in missing.items()}
    for segment in segments:
        ranges = missing[segment.source.name]
        end_bytes = segment.offset_bytes + segment.nbytes
        first = max(bisect_right(starts[segment.source.name], segment.offset_bytes) - 1, 0)
        for range_bytes, length_bytes in itertools.islice(ranges, first, None):
            if range_bytes >= end_bytes:
                break
            low_bytes = max(range_bytes, segment.offset_bytes)
            high_bytes = min(range_bytes + length_bytes, end_bytes)
            if low_bytes < high_bytes:
                yield Segment(segment.source, low_bytes, high_bytes - low_bytes)


def _headers_and_tensors(checkpoint: Checkpoint, order: Order) -> Iterator[Segment]:
    headers = {s.name: Segment(s.source, 0, s.header.header_bytes) for s in checkpoint.shards}
    for shard, tensor in ordered_tensors(checkpoint, order):
        if shard.name in headers:
            yield headers.pop(shard.name)
        yield Segment(shard.source, tensor.offset_bytes, tensor.nbytes)
    yield from headers.values()


def _continues(run: list[Tensor], tensor: Tensor) -> bool:
    last = run[-1]
    joined_bytes = tensor.offset_bytes + tensor.nbytes - run[0].offset_bytes
    return last.offset_bytes + last.nbytes == tensor.offset_bytes and joined_bytes <= COALESCED_BYTES


def _segment(shard: Shard, run: list[Tensor]) -> Segment:
    start_bytes = run[0].offset_bytes
    return Segment(shard.source, start_bytes, run[-1].offset_bytes + run[-1].nbytes - start_bytes, tuple(run))
