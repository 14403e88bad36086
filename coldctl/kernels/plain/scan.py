"""Finite or not: counts of the values that are not, and the largest of those that are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coldctl.kernels.checks import Values
from coldctl.kernels.formats import NONFINITE
from coldctl.kernels.plain.bits import STRIP_VALUES, as_bits, as_float32, strips


def row_amax(values: Values, dtype: str, amax: NDArray[np.float32]) -> None:
    """See `coldctl.kernels.base.Kernels.row_amax`."""
    for strip in strips(*values.shape):
        # Magnitudes compare as their bits do.
        magnitudes = as_bits(values[strip]) & NONFINITE[dtype].mask
        magnitudes[magnitudes >= NONFINITE[dtype].first] = 0
        amax[strip] = as_float32(magnitudes.max(axis=1, initial=0), dtype)


def finite_scan(data: NDArray[np.uint8], dtype: str) -> tuple[int, int]:
    """See `coldctl.kernels.base.Kernels.finite_scan`."""
    width_bytes, mask, flip, first, has_infinity = NONFINITE[dtype]
    values = data.view(f"u{width_bytes}")
    nonfinite = infinities = 0
    for start in range(0, values.size, STRIP_VALUES):
        keys = (values[start : start + STRIP_VALUES] & mask) ^ flip
        nonfinite += int(np.count_nonzero(keys >= first))
        infinities += int(np.count_nonzero(keys == first)) if has_infinity else 0
    return nonfinite - infinities, infinities
