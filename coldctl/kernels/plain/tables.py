"""FP8 as tables, worked out from the definition of the formats."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from coldctl.kernels.formats import FP8, NONFINITE

_SIGN = 0x80


@cache
def values_of(fp8: str) -> NDArray[np.float32]:
    """The value of each of the 256 codes of `fp8`."""
    mantissa_bits, lowest, most = FP8[fp8]
    codes = np.arange(_SIGN)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    whole = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    values = np.ldexp(whole.astype(np.float32), np.maximum(exponent, 1) - 1 + lowest - mantissa_bits)
    values[values > most] = np.nan
    if NONFINITE[fp8].has_infinity:
        values[NONFINITE[fp8].first] = np.inf
    return np.concatenate([values, -values])


@cache
def codes_of(fp8: str) -> NDArray[np.uint8]:
    """The code of `fp8` nearest to each of the 65,536 BF16 values: the even one at a tie, the last one beyond it."""
    finite = values_of(fp8)[: NONFINITE[fp8].first]
    middles = (finite[:-1] + finite[1:]) / 2
    magnitudes = (np.arange(0x8000, dtype=np.uint32) << 16).view(np.float32)
    below = np.searchsorted(middles, magnitudes, side="left")
    is_tie = np.searchsorted(middles, magnitudes, side="right") > below
    codes = (below + (is_tie & (below % 2 == 1))).astype(np.uint8)
    codes[np.isnan(magnitudes)] = _SIGN - 1
    return np.concatenate([codes, codes | _SIGN])
