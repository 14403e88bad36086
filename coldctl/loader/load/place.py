"""Where each tensor stands in memory: one arena, and tensors as views on it.

A run of a file keeps its layout in the arena (its base is the file's offset modulo 4096, so that direct reads land in
place) when every tensor in it is aligned for its dtype and to 8 bytes. Other tensors get a slot of their own, on a
multiple of 256 bytes, and so do those of a run so short that the page which it may cost is not worth it.

The arithmetic is numpy's over all tensors at once, since a checkpoint may have 90,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl.loader.format.dtypes import BITS, natural_alignment_bytes
from coldctl.loader.load.wanted import Wanted
from coldctl.units import MIB

PAGE_BYTES = 4096
SLOT_ALIGNMENT_BYTES = 256
WORD_BYTES = 8
"""Block sums are taken over words of 8 bytes, so every tensor begins on one."""

KEPT_AT_LEAST_BYTES = 1 * MIB

_ALIGNMENT_BYTES = {dtype: max(natural_alignment_bytes(dtype), WORD_BYTES) for dtype in BITS}

_GATHERED = 1 << 62
"""A boundary that no offset but 0 is on, where headers are."""

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Placed(NamedTuple):
    """A tensor and its first byte in the arena."""

    wanted: Wanted
    at_bytes: int


class Stretch(NamedTuple):
    """Tensors `first` to `end` - 1 of the plan, which follow each other in their file without a gap.

    `kept`: they do so in the arena too. A gathered tensor stands alone.
    """

    first: int
    end: int
    kept: bool


class Placement(NamedTuple):
    """All tensors of a plan, in its order: number n stands at `at_bytes[n]` of an arena that begins on a page."""

    wanted: Sequence[Wanted]
    at_bytes: Sequence[int]
    arena_bytes: int
    stretches: Sequence[Stretch]

    @property
    def placed(self) -> Iterator[Placed]:
        return map(Placed, self.wanted, self.at_bytes)


def is_aligned(wanted: Wanted) -> bool:
    """Whether its place in the file would do for it in memory."""
    return wanted.offset_bytes % _ALIGNMENT_BYTES[wanted.dtype] == 0


def place(wanted: Sequence[Wanted]) -> Placement:
    """The places of `wanted`, in their order."""
    if not wanted:
        return Placement(wanted, [], 0, [])
    offsets = np.array([each.offset_bytes for each in wanted], dtype=np.int64)
    sizes = np.array([each.nbytes for each in wanted], dtype=np.int64)
    boundaries = np.array([_GATHERED if each.gather else _ALIGNMENT_BYTES[each.dtype] for each in wanted])
    follows = _follows(wanted, offsets, sizes, boundaries == _GATHERED)
    kept = _kept(offsets % boundaries == 0, follows, sizes)
    begins = ~follows
    begins[1:] |= kept[1:] != kept[:-1]
    stretches = [Stretch(first, end, bool(kept[first])) for first, end in zip(*_bounds(begins), strict=True)]
    at, arena_bytes = _addresses(stretches, offsets, sizes)
    return Placement(wanted, at.tolist(), arena_bytes, stretches)


def _follows(wanted: Sequence[Wanted], offsets: Numbers, sizes: Numbers, gathered: Flags) -> Flags:
    """Whether each tensor begins where the one before it in the plan ends, in the same file."""
    sources = np.array([id(each.source) for each in wanted])
    follows = np.zeros(len(wanted), dtype=bool)
    follows[1:] = (
        (sources[1:] == sources[:-1]) & (offsets[:-1] + sizes[:-1] == offsets[1:]) & ~gathered[1:] & ~gathered[:-1]
    )
    return follows


def _kept(aligned: Flags, follows: Flags, sizes: Numbers) -> Flags:
    """Whether each tensor is part of a stretch of aligned ones that is long enough to keep its layout."""
    begins = ~follows
    begins[1:] |= aligned[1:] != aligned[:-1]
    part = np.cumsum(begins) - 1
    part_bytes = np.bincount(part, weights=sizes)
    long: Flags = part_bytes[part] >= KEPT_AT_LEAST_BYTES
    return aligned & long


def _bounds(begins: Flags) -> tuple[list[int], list[int]]:
    firsts = np.flatnonzero(begins).tolist()
    return firsts, [*firsts[1:], len(begins)]


def _addresses(stretches: Sequence[Stretch], offsets: Numbers, sizes: Numbers) -> tuple[Numbers, int]:
    at = np.empty(len(offsets), dtype=np.int64)
    padded = sizes + -sizes % SLOT_ALIGNMENT_BYTES
    end_bytes = 0
    for first, end, kept in stretches:
        if kept:
            begin_bytes = end_bytes + -end_bytes % PAGE_BYTES + int(offsets[first]) % PAGE_BYTES
            at[first:end] = begin_bytes + offsets[first:end] - offsets[first]
        else:
            begin_bytes = end_bytes + -end_bytes % SLOT_ALIGNMENT_BYTES
            at[first:end] = begin_bytes + np.cumsum(padded[first:end]) - padded[first:end]
        end_bytes = int(at[end - 1] + sizes[end - 1])
    return at, end_bytes
