"""Where bytes go: the sink protocol, and the sink that turns tensors into digests.

A sink sees pieces of tensors, tagged with their tensor and offset. It does not know where they came from.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.loader.format.header import Tensor
from coldctl.loader.source import Source
from coldctl.units import MIB

BLOCK_BYTES = 4 * MIB
"""The unit of block sums. Pieces never cross a multiple of it, counted from the start of their tensor."""

_WORD_BYTES = 8
_DIGITS = 32
_MASK = (1 << 64) - 1

WordSums = Callable[[memoryview, int], tuple[int, int]]
"""`coldctl.kernels.base.Kernels.word_sums`."""


class Sink(Protocol):
    """Takes the pieces of a tensor in ascending order, all from one thread; other tensors' may come from others."""

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:
        """`piece` is valid only during the call. An empty tensor comes once, with an empty piece."""


class Tee:
    """A sink that gives each piece to several, while the CPU's cache still holds it."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:
        for sink in self._sinks:
            sink.accept(source, tensor, start_bytes, piece)


class Digest(NamedTuple):
    """BLAKE3 of a tensor's bytes, and its block sums: 32 hex digits (S1 then S2) for every 4 MiB (DESIGN §10)."""

    b3: bytes
    block_sums: str


class Digests:
    """A sink that digests every tensor, with block sums only where `sums` asks for them.

    Results stand in `of`, by source name and tensor name, once the last piece of a tensor was accepted.
    """

    def __init__(self, *, sums: bool) -> None:
        self.of: dict[tuple[str, str], Digest] = {}
        self._word_sums = kernels().word_sums if sums else None
        self._open: dict[tuple[str, str], _Running] = {}

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:
        key = (source.name, tensor.name)
        running = self._open.pop(key) if start_bytes else _Running(self._word_sums)
        running.add(start_bytes, piece)
        if start_bytes + len(piece) == tensor.nbytes:
            self.of[key] = running.digest()
        else:
            self._open[key] = running


class _Running:
    """The digest of a tensor whose last piece has not come yet."""

    def __init__(self, word_sums: WordSums | None) -> None:
        self._hasher = blake3()
        self._word_sums = word_sums
        self._blocks: list[tuple[int, int]] = []

    def add(self, start_bytes: int, piece: memoryview) -> None:
        self._hasher.update(piece)
        if self._word_sums and piece:
            block, offset_bytes = divmod(start_bytes, BLOCK_BYTES)
            self._add_sums(block, *self._word_sums(piece, offset_bytes // _WORD_BYTES))

    def _add_sums(self, block: int, sum1: int, sum2: int) -> None:
        if block == len(self._blocks):
            self._blocks.append((sum1, sum2))
        else:
            before1, before2 = self._blocks[block]
            self._blocks[block] = ((before1 + sum1) & _MASK, (before2 + sum2) & _MASK)

    def digest(self) -> Digest:
        return Digest(self._hasher.digest(), "".join(f"{sum1:016x}{sum2:016x}" for sum1, sum2 in self._blocks))


def has_sums(block_sums: str, nbytes: int) -> bool:
    """Whether `block_sums` has 32 hex digits for each 4 MiB of a tensor of `nbytes`."""
    blocks = -(-nbytes // BLOCK_BYTES)
    return len(block_sums) == _DIGITS * blocks and not block_sums.strip(string.hexdigits)


def sums_in(block_sums: str) -> NDArray[np.uint64]:
    """The sums that are written in `block_sums`, S1 and S2 of each block. Shape [blocks, 2]."""
    return np.frombuffer(bytes.fromhex(block_sums), dtype=">u8").astype(np.uint64).reshape(-1, 2)
