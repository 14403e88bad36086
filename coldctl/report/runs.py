"""Which runs of a benchmark a report speaks of."""

from __future__ import annotations

import math

from coldctl.results.bench import BenchResult, BenchRun, CacheState, Summary


def cache_states(result: BenchResult) -> list[CacheState]:
    """The cache states that were measured, in their order."""
    return list(dict.fromkeys(summary.cache for summary in result.summaries))


def leading(result: BenchResult, cache: CacheState) -> Summary | None:
    """In one cache state coldctl's best way, or where none is named the one with the lowest median; None when all of
    them failed."""
    named = {best.contender for best in result.bests if best.cache == cache}
    own = {contender.name for contender in result.contenders if contender.kind == "coldctl"}
    loaded = [each for each in result.summaries if each.cache == cache and each.contender in own and each.runs]
    loaded.sort(key=lambda each: math.inf if each.median_seconds is None else each.median_seconds)
    return next(iter([*(each for each in loaded if each.contender in named), *loaded]), None)


def median_run(result: BenchResult, contender: str, cache: CacheState) -> BenchRun | None:
    """The run at the (lower) median of seconds; None when all failed."""
    runs = [run for run in result.runs if (run.contender, run.cache) == (contender, cache) and run.seconds is not None]
    runs.sort(key=lambda run: run.seconds or 0.0)
    return runs[(len(runs) - 1) // 2] if runs else None
