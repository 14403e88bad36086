"""How far figures spread, and what can be said in spite of it: percentiles, and ratios with their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_ROUNDS = 5
"""With fewer, nothing is ranked. With five the bootstrap's 95 % bounds of a median are the least and the most of the
five, so that a ratio is apart from 1 only when every round says so, which chance does once in 16; with four it would be
once in 8."""

_RESAMPLES = 10_000
_AT_ONCE = 1 << 20
_BOUNDS = (0.025, 0.975)

_Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians, or the median of ratios, with the bootstrap's 95 % bounds of it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:#.3g} (95 %: {self.low:#.3g} to {self.high:#.3g})"


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median of numerator / denominator over the rounds. The resampling is seeded: same samples, same bounds."""
    ratios = np.array(numerators) / np.array(denominators)
    low, high = np.quantile(_resampled_medians(ratios, np.random.default_rng(0)), _BOUNDS)
    return Ratio(float(np.median(ratios)), float(low), float(high))


def ratio_of_medians(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median numerator / the median denominator, of samples that were not taken in turns: each side is resampled by
    itself. Seeded as `median_ratio` is."""
    above, below = np.array(numerators), np.array(denominators)
    random = np.random.default_rng(0)
    low, high = np.quantile(_resampled_medians(above, random) / _resampled_medians(below, random), _BOUNDS)
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def percentile(samples: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile: the least sample that `percent` of all do not exceed.

    None with so few samples that it would be the greatest one by another name: P90 needs 10, P99 needs 100.
    """
    if len(samples) * (100 - percent) < 100:
        return None
    return sorted(samples)[-(-percent * len(samples) // 100) - 1]


def _resampled_medians(samples: _Floats, random: np.random.Generator) -> _Floats:
    """The medians of as many samples as there are, drawn with putting back, some rows of draws at once."""
    rows = max(1, _AT_ONCE // len(samples))
    medians = [
        np.median(samples[random.integers(0, len(samples), size=(min(rows, _RESAMPLES - done), len(samples)))], axis=1)
        for done in range(0, _RESAMPLES, rows)
    ]
    return np.concatenate(medians)
