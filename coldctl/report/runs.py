"""Which summaries and runs of a benchmark a report speaks of."""

from __future__ import annotations

import math

from coldctl.results.bench import BenchResult, BenchRun, CacheState, HostMemory, Summary, Timeline


def cache_states(result: BenchResult) -> list[CacheState]:
    """The cache states that were measured, in their order."""
    return list(dict.fromkeys(summary.cache for summary in result.summaries))


def ranked(result: BenchResult, cache: CacheState) -> list[Summary]:
    """The summaries of one cache state, the lowest median first, and last those of which no run succeeded."""
    return sorted((summary for summary in result.summaries if summary.cache == cache), key=_median)


def leading(result: BenchResult, cache: CacheState) -> Summary | None:
    """coldctl's way with the lowest median in one cache state, which is its best where one is named; None when all of
    them failed."""
    own = {contender.name for contender in result.contenders if contender.kind == "coldctl"}
    return next((each for each in ranked(result, cache) if each.contender in own and each.runs), None)


def summary_of(result: BenchResult, timeline: Timeline) -> Summary | None:
    """The summary of the rounds after which a timeline was made."""
    way = timeline.contender, timeline.cache
    return next((each for each in result.summaries if (each.contender, each.cache) == way), None)


def runs_of(result: BenchResult, contender: str, cache: CacheState | None = None) -> list[BenchRun]:
    """The runs of a contender that succeeded."""
    return [
        run
        for run in result.runs
        if run.contender == contender and cache in (None, run.cache) and run.error is None and run.seconds is not None
    ]


def peak_of(result: BenchResult, *contenders: str) -> HostMemory | None:
    """Anonymous memory of the run with the highest peak of all runs of some contenders; None where none has any."""
    measured = [run.host_memory for name in contenders for run in runs_of(result, name) if run.host_memory]
    return max(measured, key=lambda each: each.peak_anon_bytes, default=None)


def peak_of_leading(result: BenchResult) -> HostMemory | None:
    """`peak_of` the ways that lead in a cache state."""
    leaders = (leading(result, cache) for cache in cache_states(result))
    return peak_of(result, *dict.fromkeys(summary.contender for summary in leaders if summary))


def _median(summary: Summary) -> float:
    return math.inf if summary.median_seconds is None else summary.median_seconds
