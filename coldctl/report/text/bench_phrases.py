"""Wordings that the text and the page of a benchmark share, so that both say the same of the same figures."""

from __future__ import annotations

from coldctl.results.bench import BenchResult, Comparison, HostMemory, Summary
from coldctl.results.bench_runs import median_run
from coldctl.units import format_size

NO_LIMIT = "no limit applies: a mapping of warm files copies nothing, and what a peer does is not known"

NOTHING_JUDGED = "no way could be judged against the baseline: see the notes"
"""Too few rounds, or loads that failed: the notes have each way with its reason."""


def has_no_limit(result: BenchResult, summary: Summary) -> bool:
    """Whether nothing that can be measured holds its loads; else one that has no `limit` lacks the measurement.

    What comes off the disk or goes over the bus has a limit, and so have copies out of the page cache.
    """
    run = median_run(result.runs, summary.contender, summary.cache)
    passes_memory_alone = summary.cache == "warm" and result.device == "cpu"
    return summary.limit is None and passes_memory_alone and run is not None and run.mode in (None, "map")


def peers_lead(comparison: Comparison) -> str | None:
    """How much faster the peer was, `1.19 times as fast (1.10 to 1.54)`, where even the bounds say that it was."""
    if comparison.high >= 1:
        return None
    ratio, low, high = 1 / comparison.ratio, 1 / comparison.high, 1 / comparison.low
    return f"{ratio:.2f} times as fast ({low:.2f} to {high:.2f})"


def before_load(memory: HostMemory) -> str:
    """What to say beside a peak, which is of the whole process: that of a small load may be that of its imports."""
    return f"{format_size(memory.before_anon_bytes)} before the load"
