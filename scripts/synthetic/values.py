"""Pseudo-random values for a tensor, all of them finite, which depend on the seed and on its place in the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coldctl.units import MIB
from scripts.synthetic.dtypes import WIDTH_BYTES
from scripts.synthetic.tensors import Tensor

BLOCK_BYTES = 4 * MIB
# Random bits to keep and bits to set, so that every value is finite and of the size that weights, norms or scales have.
PATTERNS = {
    ("weight", "F32"): (0x80FFFFFF, 0x3C000000),
    ("weight", "BF16"): (0x80FF, 0x3C00),
    ("weight", "F16"): (0x87FF, 0x2000),
    ("weight", "F8_E4M3"): (0xBF, 0x00),
    ("norm", "F32"): (0x000FFFFF, 0x3F800000),
    ("norm", "BF16"): (0x000F, 0x3F80),
    ("norm", "F16"): (0x007F, 0x3C00),
    ("scale", "F32"): (0x007FFFFF, 0x39000000),
}


def random_blocks(tensor: Tensor, seed: int) -> Iterator[memoryview]:
    """The tensor's bytes, block by block."""
    width = WIDTH_BYTES[tensor.dtype]
    keep, fix = (
        np.uint64(int.from_bytes(pattern.to_bytes(width, "little") * (8 // width), "little"))
        for pattern in PATTERNS[tensor.kind, tensor.dtype]
    )
    generator = np.random.PCG64([seed, tensor.number])
    for start in range(0, tensor.nbytes, BLOCK_BYTES):
        nbytes = min(BLOCK_BYTES, tensor.nbytes - start)
        words: NDArray[np.uint64] = generator.random_raw(-(-nbytes // 8))
        words &= keep
        words |= fix
        yield words.data.cast("B")[:nbytes]
