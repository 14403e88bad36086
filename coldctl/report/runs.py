"""Which summaries of a benchmark a report speaks of."""

from __future__ import annotations

import math

from coldctl.results.bench import BenchResult, CacheState, Summary


def cache_states(result: BenchResult) -> list[CacheState]:
    """The cache states that were measured, in their order."""
    return list(dict.fromkeys(summary.cache for summary in result.summaries))


def leading(result: BenchResult, cache: CacheState) -> Summary | None:
    """coldctl's way with the lowest median in one cache state, which is its best where one is named; None when all of
    them failed."""
    own = {contender.name for contender in result.contenders if contender.kind == "coldctl"}
    loaded = [each for each in result.summaries if each.cache == cache and each.contender in own and each.runs]
    return min(loaded, key=lambda each: math.inf if each.median_seconds is None else each.median_seconds, default=None)
