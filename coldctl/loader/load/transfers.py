"""A placement cut into transfers: each one range of a file that goes to one range of the arena, at most a chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from coldctl.loader.load.place import Placement, Stretch
from coldctl.loader.load.wanted import Gather, Wanted
from coldctl.loader.source import Source

MOST_PIECES = 1000
"""A single preadv takes 1024 buffers (IOV_MAX), and a gap between two tensors none."""


Piece = tuple[int, int]
"""(at_bytes, nbytes): so many bytes go to that place of the transfer's range of the arena. A plain tuple of numbers,
which Python's cycle collector soon leaves alone: there may be one for each of 90,000 tensors."""


class Transfer(NamedTuple):
    """The bytes of tensors `first` to `end` - 1 of the plan, whole or in part.

    `nbytes` of `source` from `offset_bytes` on fill the `pieces`, one after the other, of the arena's `span_bytes` from
    `at_bytes` on; what lies between two pieces belongs to nobody. With `gather` the bytes are its strips, the first one
    at `offset_bytes`, and `nbytes` is their sum.
    """

    source: Source
    offset_bytes: int
    nbytes: int
    at_bytes: int
    span_bytes: int
    pieces: Sequence[Piece]
    gather: Gather | None
    first: int
    end: int
    name: str
    """Of its first tensor, for errors."""

    @property
    def in_place(self) -> bool:
        """Whether it is one contiguous range here and there."""
        return self.gather is None and len(self.pieces) == 1

    @property
    def end_offset_bytes(self) -> int:
        """Where its last byte is in the source, plus one."""
        if self.gather is None:
            return self.offset_bytes + self.nbytes
        return self.offset_bytes + (self.gather.strips - 1) * self.gather.pitch_bytes + self.gather.strip_bytes

    def part(self, begin_bytes: int, end_bytes: int) -> Transfer:
        """Bytes `begin_bytes` to `end_bytes` - 1 of a transfer in one piece."""
        nbytes = end_bytes - begin_bytes
        return self._replace(
            offset_bytes=self.offset_bytes + begin_bytes,
            nbytes=nbytes,
            at_bytes=self.at_bytes + begin_bytes,
            span_bytes=nbytes,
            pieces=((0, nbytes),),
        )


def transfers(placement: Placement, chunk_bytes: int, boundaries: Sequence[int] = ()) -> Iterator[Transfer]:
    """The transfers of `placement`, in its order, none larger than `chunk_bytes` (a multiple of 4096) in the arena.

    No transfer holds tensors from both sides of a number in `boundaries` (numbers of the plan, ascending). Tensors
    without bytes may be in no transfer.
    """
    for stretch in placement.stretches:
        for part in _parts(stretch, boundaries):
            if placement.wanted[part.first].gather:
                yield from _gathered(placement, part.first, chunk_bytes)
            elif part.kept:
                yield from _kept(placement, part, chunk_bytes)
            else:
                yield from _slots(placement, part, chunk_bytes)


def alone(wanted: Wanted, number: int) -> Transfer:
    """All of one tensor, number `number` of the plan, to memory of its own."""
    return _one_piece(wanted, wanted.offset_bytes, wanted.nbytes, 0, number, number + 1)._replace(gather=wanted.gather)


def _parts(stretch: Stretch, boundaries: Sequence[int]) -> Iterator[Stretch]:
    inside = boundaries[bisect_right(boundaries, stretch.first) : bisect_left(boundaries, stretch.end)]
    for first, end in pairwise((stretch.first, *inside, stretch.end)):
        yield Stretch(first, end, stretch.kept)


def _kept(placement: Placement, stretch: Stretch, chunk_bytes: int) -> Iterator[Transfer]:
    """Cut at multiples of the chunk in the file, so that all but the ends can be read directly."""
    wanted, number = placement.wanted, stretch.first
    start_bytes, last = wanted[stretch.first].offset_bytes, wanted[stretch.end - 1]
    end_bytes = last.offset_bytes + last.nbytes
    moved_bytes = placement.at_bytes[stretch.first] - start_bytes
    while start_bytes < end_bytes:
        stop_bytes = min(start_bytes - start_bytes % chunk_bytes + chunk_bytes, end_bytes)
        first = number
        while number < stretch.end and wanted[number].offset_bytes < stop_bytes:
            number += 1
        yield _one_piece(wanted[first], start_bytes, stop_bytes - start_bytes, start_bytes + moved_bytes, first, number)
        if wanted[number - 1].offset_bytes + wanted[number - 1].nbytes > stop_bytes:
            number -= 1
        start_bytes = stop_bytes


def _slots(placement: Placement, stretch: Stretch, chunk_bytes: int) -> Iterator[Transfer]:
    """As many neighbours as fit a chunk; a tensor larger than that alone, in pieces."""
    wanted, at = placement.wanted, placement.at_bytes
    number = stretch.first
    while number < stretch.end:
        first = number
        if wanted[first].nbytes > chunk_bytes:
            yield from _large(wanted[first], at[first], first, chunk_bytes)
            number += 1
            continue
        limit_bytes = at[first] + chunk_bytes
        most = min(first + MOST_PIECES, stretch.end)
        while number < most and at[number] + wanted[number].nbytes <= limit_bytes:
            number += 1
        yield from _together(placement, first, number)


def _together(placement: Placement, first: int, end: int) -> Iterator[Transfer]:
    wanted, base_bytes = placement.wanted, placement.at_bytes[first]
    places = zip(placement.at_bytes[first:end], wanted[first:end], strict=True)
    pieces: list[Piece] = [(at_bytes - base_bytes, each.nbytes) for at_bytes, each in places if each.nbytes]
    if not pieces:
        return
    span_bytes = sum(pieces[-1])
    nbytes = sum(each_bytes for _, each_bytes in pieces)
    source, offset_bytes, name = wanted[first].source, wanted[first].offset_bytes, wanted[first].name
    yield Transfer(source, offset_bytes, nbytes, base_bytes, span_bytes, pieces, None, first, end, name)


def _large(wanted: Wanted, at_bytes: int, number: int, chunk_bytes: int) -> Iterator[Transfer]:
    for done_bytes in range(0, wanted.nbytes, chunk_bytes):
        nbytes = min(chunk_bytes, wanted.nbytes - done_bytes)
        yield _one_piece(wanted, wanted.offset_bytes + done_bytes, nbytes, at_bytes + done_bytes, number, number + 1)


def _gathered(placement: Placement, number: int, chunk_bytes: int) -> Iterator[Transfer]:
    """Whole strips while they fit a chunk; a strip larger than that is cut like a tensor of its own."""
    wanted, at_bytes = placement.wanted[number], placement.at_bytes[number]
    strips, strip_bytes, pitch_bytes = wanted.gather or Gather(0, 0, 0)
    if strip_bytes > chunk_bytes:
        for strip in range(strips):
            begin_bytes = wanted.offset_bytes + strip * pitch_bytes
            alone = msgspec.structs.replace(wanted, offset_bytes=begin_bytes, nbytes=strip_bytes)
            yield from _large(alone, at_bytes + strip * strip_bytes, number, chunk_bytes)
        return
    at_once = chunk_bytes // max(strip_bytes, 1)
    for first in range(0, strips, at_once):
        part = Gather(min(at_once, strips - first), strip_bytes, pitch_bytes)
        offset_bytes, nbytes = wanted.offset_bytes + first * pitch_bytes, part.strips * strip_bytes
        piece = _one_piece(wanted, offset_bytes, nbytes, at_bytes + first * strip_bytes, number, number + 1)
        yield piece._replace(gather=part)


def _one_piece(wanted: Wanted, offset_bytes: int, nbytes: int, at_bytes: int, first: int, end: int) -> Transfer:
    pieces = ((0, nbytes),)
    return Transfer(wanted.source, offset_bytes, nbytes, at_bytes, nbytes, pieces, None, first, end, wanted.name)
