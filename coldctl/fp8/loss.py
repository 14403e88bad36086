"""What a matrix loses by becoming FP8: compared strip by strip, put together at the end whatever the strips' order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl.results.fp8 import WorstRow

Floats = NDArray[Any]

_WORST_ROWS = 5
_SQUARES_FIT = (1e-12, 1e15)
"""The largest magnitude of a row lies between these: float32 then holds the sums of squares of its values, and those of
their differences, without losing bits."""


class StripLoss(NamedTuple):
    """Sums over some rows: squares of the values (`signal`) and of the differences (`noise`), and 1 - cosine over the
    `directed_rows`, which are not zero. `worst` are the rows with the largest 1 - cosine."""

    values: int
    signal: float
    noise: float
    max_error: float
    flushed: int
    flushed_rows: int
    saturated: int
    directed_rows: int
    distances: float
    worst: tuple[WorstRow, ...]
    nans: int
    infinities: int


def compare(
    before: NDArray[np.float32], after: NDArray[np.float32], amax: NDArray[np.float32], first_row: int
) -> StripLoss:
    """Compare strips [rows, columns] of finite values that begin at row `first_row`. `after` may be written over.

    `amax` holds the largest magnitudes in the rows of `before`. What is not finite, and what was saturated, is for the
    caller to count: those are 0 in the result.
    """
    flushed = _zeros(after) - _zeros(before)
    if not _squares_fit(amax):
        before, after = before.astype(np.float64), after.astype(np.float64)
    difference = np.subtract(after, before, out=after)
    signal, cross, noise = _dots(before, before), _dots(before, difference), _dots(difference, difference)
    flushed_rows = _flushed_rows(before, difference, signal, noise)
    rows = np.flatnonzero(signal)
    distances = _cosine_distances(signal[rows], cross[rows], noise[rows])
    return StripLoss(
        values=before.size,
        signal=math.fsum(signal),
        noise=math.fsum(noise),
        max_error=float(np.abs(difference, out=difference).max(initial=0)),
        flushed=flushed,
        flushed_rows=flushed_rows,
        saturated=0,
        directed_rows=rows.size,
        distances=math.fsum(distances),
        worst=_worst([WorstRow(first_row + int(rows[i]), float(distances[i])) for i in _largest(distances)]),
        nans=0,
        infinities=0,
    )


def total(strips: Sequence[StripLoss]) -> StripLoss:
    """All strips of a matrix as one, the same in whatever order they come."""
    return StripLoss(
        values=sum(strip.values for strip in strips),
        signal=math.fsum(strip.signal for strip in strips),
        noise=math.fsum(strip.noise for strip in strips),
        max_error=max(strip.max_error for strip in strips),
        flushed=sum(strip.flushed for strip in strips),
        flushed_rows=sum(strip.flushed_rows for strip in strips),
        saturated=sum(strip.saturated for strip in strips),
        directed_rows=sum(strip.directed_rows for strip in strips),
        distances=math.fsum(strip.distances for strip in strips),
        worst=_worst([row for strip in strips for row in strip.worst]),
        nans=sum(strip.nans for strip in strips),
        infinities=sum(strip.infinities for strip in strips),
    )


def _dots(left: Floats, right: Floats) -> Floats:
    """The dot product of each row with the other's. numpy leaves this matmul to BLAS, row by row."""
    dots: Floats = np.matmul(left[:, np.newaxis, :], right[:, :, np.newaxis])[:, 0, 0].astype(np.float64)
    return dots


def _cosine_distances(signal: Floats, cross: Floats, noise: Floats) -> Floats:
    """1 - cosine of rows a and a + d from |a|², a·d and |d|², by way of the sine: 1 - 0.9996 would keep few digits.

    A row that became zero has 1.
    """
    after = signal + 2 * cross + noise
    lengths = signal * after
    with np.errstate(divide="ignore", invalid="ignore"):
        sine_squared = np.clip((signal * noise - cross * cross) / lengths, 0, 1)
        cosine = (signal + cross) / np.sqrt(lengths)
        distances = np.where(cosine > 0, sine_squared / (1 + cosine), 1 - cosine)
    return np.where(after > 0, distances, 1.0)


def _zeros(values: Floats) -> int:
    return values.size - int(np.count_nonzero(values != 0))  # of booleans it is faster than of floats


def _flushed_rows(before: Floats, difference: Floats, signal: Floats, noise: Floats) -> int:
    """Rows, not zero, that became zero: those that differ by themselves."""
    suspects = np.flatnonzero((signal > 0) & (noise >= signal / 2))
    return int(np.count_nonzero((difference[suspects] == -before[suspects]).all(axis=1)))


def _squares_fit(amax: NDArray[np.float32]) -> bool:
    low, high = _SQUARES_FIT
    return bool(np.all((amax == 0) | ((amax > low) & (amax < high))))


def _largest(distances: Floats) -> NDArray[np.intp]:
    count = min(_WORST_ROWS, distances.size)
    return np.argpartition(distances, distances.size - count)[distances.size - count :] if count else np.arange(0)


def _worst(rows: list[WorstRow]) -> tuple[WorstRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.cosine_distance, row.row))[:_WORST_ROWS])
