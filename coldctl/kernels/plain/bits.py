"""Arrays of values as bits and as float32, a strip at a time: temporary arrays then stay in the CPU's cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coldctl.kernels.checks import Values
from coldctl.kernels.formats import BF16, F16

STRIP_VALUES = 1 << 16

_HALF = np.uint32(0x7FFF)


def strips(rows: int, columns: int) -> Iterator[slice]:
    """`rows` in order, so many at once as make up STRIP_VALUES, and one at least."""
    step = max(1, STRIP_VALUES // max(1, columns))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def as_bits(values: Values) -> Values:
    return values.view(f"u{values.itemsize}")


def as_float32(values: Values, dtype: str) -> NDArray[np.float32]:
    """Exactly. Any shape."""
    floats = np.empty(values.shape, np.float32)
    into_float32(values, dtype, floats)
    return floats


def into_float32(values: Values, dtype: str, floats: NDArray[np.float32]) -> None:
    """`as_float32` into an array of the caller's, of the same shape."""
    if dtype == BF16:
        bits = floats.view(np.uint32)
        np.copyto(bits, as_bits(values))
        np.left_shift(bits, 16, out=bits)
    else:
        np.copyto(floats, values.view(np.float16 if dtype == F16 else np.float32))


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest BF16, even at a tie. No NaN may have all of its mantissa's upper bits set."""
    bits = values.view(np.uint32)
    return ((bits + _HALF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
