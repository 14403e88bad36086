"""What several parts of the page ask of a result."""

from __future__ import annotations

import statistics

from coldctl.report.bench_words import LIMITS
from coldctl.report.html.markup import Safe, element, join
from coldctl.results.bench import BenchResult, Limits


def limit_rate(limits: Limits, name: str | None) -> float | None:
    """The rate of a limit by its name, in bytes per second."""
    rate: float | None = getattr(limits, f"{name}_bytes_per_second") if name in LIMITS else None
    return rate


def limit_words(name: str) -> str:
    return LIMITS.get(name, name)


def peers(result: BenchResult) -> set[str]:
    return {contender.name for contender in result.contenders if contender.kind == "peer"}


def median_of(values: list[float | None]) -> float | None:
    """The median of what was measured, if anything was."""
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


def name_of(contender: str, others: set[str]) -> Safe:
    """A contender's name, marked when it is a peer."""
    tag = element("span", "peer", class_="tag") if contender in others else None
    return join([element("span", contender, class_="name"), tag], separator=" ")
