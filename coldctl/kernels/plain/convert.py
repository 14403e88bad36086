"""To FP8 and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coldctl.kernels.checks import Values
from coldctl.kernels.formats import BF16
from coldctl.kernels.plain.bits import as_bits, as_float32, strips, to_bf16
from coldctl.kernels.plain.tables import codes_of, values_of

_Codes = NDArray[np.uint8]
_Scales = NDArray[np.float32]


def encode(values: Values, dtype: str, codes: _Codes, fp8: str, scales: _Scales | None) -> None:
    """See `coldctl.kernels.base.Kernels.encode`."""
    table = codes_of(fp8)
    for strip in strips(*values.shape):
        with np.errstate(all="ignore"):
            quotients = as_float32(values[strip], dtype)
            if scales is not None:
                quotients /= scales[strip, np.newaxis]
        codes[strip] = table[_rounded_to_odd(quotients)]


def decode(
    codes: _Codes, fp8: str, values: Values, dtype: str, scales: _Scales | None, rows: NDArray[np.int64] | None
) -> None:
    """See `coldctl.kernels.base.Kernels.decode`."""
    table, results = values_of(fp8), as_bits(values)
    for strip in strips(*values.shape):
        stored = strip if rows is None else rows[strip]
        products = table[codes[stored]]
        if scales is not None:
            with np.errstate(all="ignore"):
                products *= scales[stored, np.newaxis]
        products[np.isnan(products)] = np.nan
        results[strip] = to_bf16(products) if dtype == BF16 else products.view(np.uint32)


def _rounded_to_odd(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of BF16 that lie on the same side of every value of fewer bits as `values` do, and on it only where they do.

    Cut off, with the last bit set where something was lost (S. Boldo, G. Melquiond: Emulation of FMA and Correctly
    Rounded Sums, 2008): rounded once more, to FP8, it is as if it were rounded once.
    """
    bits = values.view(np.uint32)
    odd: NDArray[np.uint16] = ((bits >> 16) | ((bits & 0xFFFF) != 0)).astype(np.uint16)
    return odd
