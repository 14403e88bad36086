"""Rounds that take turns, and the ratio of what they give, with bounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scripts.bench.child import Sample

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, with the bootstrap's 95 % bounds of that median."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def interleave(
    contenders: Mapping[str, Callable[[], Sample]], rounds: int, *, until_seconds: float = math.inf
) -> dict[str, list[Sample]]:
    """Run every contender once a round, each round in the reverse order of the last. All samples are kept.

    No round but the first begins after `until_seconds` of time.monotonic().
    """
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        if number and time.monotonic() > until_seconds:
            break
        for name in names:
            samples[name].append(contenders[name]())
        names.reverse()
    return samples


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median of numerator / denominator over the rounds. The resampling is seeded: same samples, same bounds."""
    ratios = np.array(numerators) / np.array(denominators)
    picks = np.random.default_rng(0).integers(0, len(ratios), size=(_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))
