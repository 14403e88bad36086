"""Sums of the 64-bit words of a buffer."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
_WEIGHTS = 1 << 19


def word_sums(data: NDArray[np.uint8]) -> tuple[int, int]:
    """See `coldctl.kernels.base.Kernels.word_sums`; here the words are numbered from 0."""
    whole_bytes = data.size // _WORD_BYTES * _WORD_BYTES
    words = data[:whole_bytes].view("<u8")
    sum1 = sum2 = 0
    for start in range(0, words.size, _WEIGHTS):
        some = words[start : start + _WEIGHTS]
        plain = int(np.add.reduce(some, dtype=np.uint64))
        sum1 += plain
        sum2 += int(np.dot(some, _weights()[: some.size])) + start * plain
    last = int.from_bytes(data[whole_bytes:].tobytes(), "little")
    return sum1 + last, sum2 + (words.size + 1) * last


@cache
def _weights() -> NDArray[np.uint64]:
    return np.arange(1, _WEIGHTS + 1, dtype=np.uint64)
