"""Scales: which values of a matrix share one, how it follows from their largest magnitude, and how it is stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_MOST = {"F32": 2.0**128 - 2.0**104, "F16": 65504.0, "BF16": 2.0**128 - 2.0**120}
_LOW_HALF = np.uint32(0xFFFF)


class Grid(NamedTuple):
    """One scale for every `rows` x `columns` values of a matrix `shape`, which they divide."""

    shape: tuple[int, int]
    rows: int
    columns: int

    @property
    def scale_shape(self) -> tuple[int, int]:
        return (self.shape[0] // self.rows, self.shape[1] // self.columns)

    def amax_of(self, amax_of_units: F32) -> F32:
        """The largest magnitude under each scale, [scale rows, scale columns], from that of each run of `columns`
        values, in file order, of whole scale rows."""
        amax: F32 = amax_of_units.reshape(-1, self.rows, self.scale_shape[1]).max(axis=1)
        return amax

    def for_units(self, scales: F32, first_unit: int, count: int) -> F32:
        """The scale of each of `count` runs of `columns` values, in file order from the `first_unit`th run on."""
        row, column = np.divmod(np.arange(first_unit, first_unit + count), self.scale_shape[1])
        picked: F32 = scales[row // self.rows, column]
        return picked


def scales_for(amax: F32, most: float, dtype: str) -> F32:
    """The scale in `dtype` (F32, BF16 or F16), as float32, that takes `amax` to at most `most`, the largest FP8 number.

    It is rounded up, so that rounding saturates nothing; what BF16 rounds down by 0.2 % would. It stays so small that
    `most` times it is finite in `dtype`, for whoever multiplies in that. The scale of zeros is 1.
    """
    exact = amax.astype(np.float64) / most
    scales = np.minimum(_round_up(exact, dtype), _round_down(_MOST[dtype] / most, dtype))
    return np.where(amax > 0, scales, np.float32(1))


def stored(scales: F32, dtype: str) -> bytes:
    """The bytes of `scales`, which `dtype` holds exactly, as a safetensors file has them."""
    if dtype == "BF16":
        return (scales.view(np.uint32) >> 16).astype("<u2").tobytes()
    return scales.astype("<f2" if dtype == "F16" else "<f4").tobytes()


def _round_up(exact: NDArray[np.float64], dtype: str) -> F32:
    """The least number of `dtype` that is not below each of `exact`, which are positive or 0."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            half = exact.astype(np.float16)
        up: F32 = np.where(half < exact, np.nextafter(half, np.float16(np.inf)), half).astype(np.float32)
        return up
    single = exact.astype(np.float32)
    single = np.where(single < exact, np.nextafter(single, np.float32(np.inf)), single)
    if dtype == "BF16":
        return ((single.view(np.uint32) + _LOW_HALF) & ~_LOW_HALF).view(np.float32)
    return single


def _round_down(exact: float, dtype: str) -> F32:
    """The largest number of `dtype`, as an array of one, that is not above `exact`."""
    up = _round_up(np.array([exact]), dtype)
    if up[0] <= exact:
        return up
    if dtype == "F16":
        return (up.astype(np.float16).view(np.uint16) - np.uint16(1)).view(np.float16).astype(np.float32)
    return (up.view(np.uint32) - (_LOW_HALF + np.uint32(1) if dtype == "BF16" else np.uint32(1))).view(np.float32)
