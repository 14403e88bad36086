"""Which runs of a benchmark are spoken of: the states that were measured, the leading way, the run in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import get_args

from coldctl.results.bench import BenchRun, CacheState, Contender

SecondsByRound = Mapping[int, float]
"""Seconds by round, of the runs that succeeded."""


def cache_states(runs: Sequence[BenchRun]) -> list[CacheState]:
    """Those in which there are runs: cold first."""
    found = {run.cache for run in runs}
    return [cache for cache in get_args(CacheState) if cache in found]


def succeeded(run: BenchRun) -> bool:
    return run.error is None and bool(run.seconds)


def runs_of(runs: Sequence[BenchRun], contender: str, cache: CacheState) -> list[BenchRun]:
    return [run for run in runs if (run.contender, run.cache) == (contender, cache)]


def seconds_by_round(runs: Sequence[BenchRun], contender: str, cache: CacheState) -> SecondsByRound:
    return {run.round: run.seconds for run in runs_of(runs, contender, cache) if succeeded(run) and run.seconds}


def median_run(runs: Sequence[BenchRun], contender: str, cache: CacheState) -> BenchRun | None:
    """The run that took the median of seconds, the slower of two in the middle: so it is a run whose stages are known.
    None when none succeeded."""
    loaded = sorted(filter(succeeded, runs_of(runs, contender, cache)), key=lambda run: run.seconds or 0.0)
    return loaded[len(loaded) // 2] if loaded else None


def ways(
    contenders: Sequence[Contender], runs: Sequence[BenchRun], cache: CacheState, kind: str
) -> dict[str, SecondsByRound]:
    """The contenders of a kind that loaded in a cache state, by name, that with the least median of seconds first."""
    seconds = {each.name: seconds_by_round(runs, each.name, cache) for each in contenders if each.kind == kind}
    loaded = [name for name, rounds in seconds.items() if rounds]
    return {name: seconds[name] for name in sorted(loaded, key=lambda name: median(seconds[name].values()))}


def leading(contenders: Sequence[Contender], runs: Sequence[BenchRun], cache: CacheState) -> str | None:
    """coldctl's own way with the least median of seconds in a cache state, by name; None when none loaded."""
    return next(iter(ways(contenders, runs, cache, "coldctl")), None)
