"""All figures of all ways in one table, what bounds them in another, and the runs that failed in a third."""

from __future__ import annotations

from collections import Counter

from coldctl.report.html.facts import median_of, name_of, peers
from coldctl.report.html.markup import NOTHING, Child, Safe
from coldctl.report.html.section import section, sentence
from coldctl.report.html.table import data_table
from coldctl.report.runs import cache_states, ranked, runs_of
from coldctl.results.bench import BenchResult, Summary
from coldctl.units import format_rate, format_ratio

_HEAD = (
    "way to load",
    "cache",
    "runs",
    "median, s",
    "min, s",
    "max, s",
    "P90, s",
    "P99, s",
    "rate",
    "of limit",
    "loader returned, s",
    "CPU, s",
    "first layers, s",
)


def figures_section(result: BenchResult) -> Safe:
    """Columns in which nothing was measured are left out."""
    others = peers(result)
    rows = [_row(result, summary, others) for cache in cache_states(result) for summary in ranked(result, cache)]
    if not rows:
        return NOTHING
    kept = [i for i in range(len(_HEAD)) if any(row[i] is not None for row in rows)]
    table = data_table(
        "Figures of every way to load", [_HEAD[i] for i in kept], [[row[i] for i in kept] for row in rows]
    )
    lead = (
        "Seconds of all runs that succeeded; when the loader returned, CPU and first layers are medians. A dash is "
        "what was not measured, or is not there to measure."
    )
    return section("All figures", lead, table)


def _row(result: BenchResult, each: Summary, others: set[str]) -> list[Child]:
    runs = runs_of(result, each.contender, each.cache)
    return [
        name_of(each.contender, others),
        each.cache,
        f"{each.runs} of {each.runs + each.failed}" if each.failed else f"{each.runs}",
        *map(_seconds, (each.median_seconds, each.min_seconds, each.max_seconds, each.p90_seconds, each.p99_seconds)),
        None if each.bytes_per_second is None else format_rate(each.bytes_per_second),
        None if each.limit_share is None else format_ratio(each.limit_share),
        _seconds(median_of([run.loaded_seconds for run in runs])),
        _seconds(median_of([run.cpu_seconds for run in runs])),
        _seconds(median_of([run.first_layers_seconds for run in runs])),
    ]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def bounds_section(result: BenchResult) -> Safe:
    """The sentence of every way that loaded: the panels at the top have only those of the leading ones."""
    others = peers(result)
    rows = [
        (name_of(each.contender, others), each.cache, sentence(each.bound))
        for cache in cache_states(result)
        for each in ranked(result, cache)
        if each.bound
    ]
    if not rows:
        return NOTHING
    table = data_table("What bounds every way to load", ("way to load", "cache", "bound"), rows, "data prose")
    return section("What bounds each way", None, table)


def failures_section(result: BenchResult) -> Safe:
    """Each reason once for each way and cache state, with how often it was met."""
    failed = Counter((run.contender, run.cache, run.error) for run in result.runs if run.error is not None)
    if not failed:
        return NOTHING
    others = peers(result)
    rows = [
        (name_of(contender, others), cache, f"{times}", sentence(error or ""))
        for (contender, cache, error), times in failed.items()
    ]
    table = data_table("Runs that failed", ("way to load", "cache", "runs", "reason"), rows, "data prose")
    return section("What failed", None, table)
