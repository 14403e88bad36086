"""Rounds that take turns, and the ratio of what they give, with bounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from coldctl.jobs.bench.verdict.spread import median_ratio
from scripts.bench.child import Sample

__all__ = ["interleave", "median_ratio"]


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
