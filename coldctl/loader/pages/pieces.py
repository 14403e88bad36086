"""How a plan is handed to a page reader so that the kernel brings in what is planned, and nothing beside it.

Read-ahead goes past the end of what is asked for, and begins before its start at a whole block of 2 MiB. So the ends of
every run are read exactly, and before the rest of it: pages that lie there already stop the read-ahead of the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coldctl.loader import plan
from coldctl.loader.pages.warm import BLOCK_BYTES, WINDOW_BYTES
from coldctl.loader.plan import CHUNK_BYTES, Segment


class Piece(NamedTuple):
    """Part of a plan. `exact`: to be read without read-ahead."""

    segment: Segment
    exact: bool


def pieces(segments: Iterable[Segment], reach_bytes: int) -> Iterator[tuple[Piece, ...]]:
    """The bytes of `segments`, run by run, in groups that one thread reads in their order.

    `reach_bytes` is how far read-ahead goes past what is asked for. The ends of a run stand in a group with its first
    chunk, so that no other thread can be reading ahead into them.
    """
    for run in plan.runs(segments):
        start_bytes, end_bytes = run.offset_bytes, run.offset_bytes + run.nbytes
        at_end_of_file = end_bytes == run.source.size_bytes
        tail_bytes = end_bytes if at_end_of_file else max(start_bytes, end_bytes - reach_bytes)
        head_bytes = min(start_bytes + -start_bytes % BLOCK_BYTES, tail_bytes)
        tail = _cut(run, tail_bytes, end_bytes, exact=True)
        head = _cut(run, start_bytes, head_bytes, exact=True)
        body = _cut(run, head_bytes, tail_bytes, exact=False)
        yield (*tail, *head, *itertools.islice(body, 1))
        yield from ((chunk,) for chunk in body)


def whole(segments: Iterable[Segment]) -> Iterator[tuple[Piece, ...]]:
    """The same without care for what lies beside: for plans that leave nothing out."""
    for run in plan.runs(segments):
        yield from ((chunk,) for chunk in _cut(run, run.offset_bytes, run.offset_bytes + run.nbytes, exact=False))


def _cut(run: Segment, start_bytes: int, end_bytes: int, *, exact: bool) -> Iterator[Piece]:
    part = Segment(run.source, start_bytes, end_bytes - start_bytes)
    for segment in plan.cut(part, WINDOW_BYTES if exact else CHUNK_BYTES):
        yield Piece(segment, exact)
