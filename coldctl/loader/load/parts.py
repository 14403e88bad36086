"""The blocks of tensors (the unit of block sums) and where they stand, in memory and in their file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from coldctl.loader.load.place import Placed
from coldctl.loader.load.sums import Blocks
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.sink import BLOCK_BYTES


class Part(NamedTuple):
    """A block of the plan's tensor `order`: its `nbytes` from `start_bytes` on. `number` counts the blocks of a Parts.

    In memory it begins at `at_bytes`, in the file (where the tensor is not gathered) at `offset_bytes`.
    """

    number: int
    order: int
    start_bytes: int
    nbytes: int
    wanted: Wanted
    at_bytes: int

    @property
    def offset_bytes(self) -> int:
        return self.wanted.offset_bytes + self.start_bytes


class Parts:
    """All blocks of those tensors of a plan that `orders` names; none of a tensor without bytes.

    `blocks` is where they stand in memory. A Part is made when it is asked for: there may be 90,000, seldom needed.
    """

    def __init__(self, plan: Sequence[Placed], orders: Sequence[int]) -> None:
        at = np.array([plan[order].at_bytes for order in orders], dtype=np.int64)
        sizes = np.array([plan[order].wanted.nbytes for order in orders], dtype=np.int64)
        counts = -(-sizes // BLOCK_BYTES)
        tensor = np.repeat(np.arange(len(sizes)), counts)
        start = (np.arange(len(tensor)) - np.repeat(np.cumsum(counts) - counts, counts)) * BLOCK_BYTES
        self.blocks: Blocks = np.stack([at[tensor] + start, np.minimum(sizes[tensor] - start, BLOCK_BYTES)], 1)
        self.nbytes = int(sizes.sum())
        self._plan = plan
        self._orders = np.array(orders, dtype=np.int64)[tensor].tolist()
        self._starts = start.tolist()

    def part(self, number: int) -> Part:
        order, start_bytes = self._orders[number], self._starts[number]
        wanted, at_bytes = self._plan[order]
        nbytes = min(wanted.nbytes - start_bytes, BLOCK_BYTES)
        return Part(number, order, start_bytes, nbytes, wanted, at_bytes + start_bytes)

    def __iter__(self) -> Iterator[Part]:
        return map(self.part, range(len(self.blocks)))
