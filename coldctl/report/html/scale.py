"""From values to places: a scale gives a share of the width in per cent, so that a chart fits every screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(Protocol):
    def at(self, value: float) -> float:
        """Where `value` lies, in per cent of the width."""

    def ticks(self) -> list[tuple[float, str]]:
        """The values to mark, each with its label."""


@dataclass(frozen=True, slots=True)
class Linear:
    """From `low` to `high`. `suffix` follows every label (` %`)."""

    high: float
    low: float = 0.0
    suffix: str = ""

    def at(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        step = nice_step(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(i * step, f"{i * step:.6g}{self.suffix}") for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A logarithmic scale of ratios with 1 in its middle, so that twice and half are equally far from it."""

    high: float

    def at(self, value: float) -> float:
        return 50 + 50 * math.log(value) / math.log(self.high)

    def ticks(self) -> list[tuple[float, str]]:
        beyond = [step for step in (1.1, 1.25, 1.5, 2, 3, 5, 10, 30, 100, 1000) if step <= self.high]
        marks = beyond[-2:] if len(beyond) > 1 else beyond
        return [(1 / mark, f"1/{mark:g}") for mark in reversed(marks)] + [(1, "1")] + [(m, f"{m:g}") for m in marks]


def linear(values: Iterable[float], suffix: str = "") -> Linear:
    """The scale from 0 to a little more than the largest of `values`, for lengths."""
    return Linear(max(values, default=0.0) * 1.02 or 1.0, suffix=suffix)


def around(values: Sequence[float]) -> Linear:
    """The scale around `values`, for places: it begins at 0 only when that costs less than half of its width."""
    low, high = min(values, default=0.0), max(values, default=0.0) * 1.02 or 1.0
    if low < high / 2:
        return Linear(high)
    step = nice_step(high - low)
    return Linear(high, math.floor(low / step) * step)


def nice_step(high: float, most: int = 5) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that goes at most `most` times into `high`."""
    power = 10.0 ** math.floor(math.log10(high / most))
    return next(step * power for step in _STEPS if step * power * most >= high * (1 - 1e-9))
