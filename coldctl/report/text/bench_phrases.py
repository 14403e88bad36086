"""Wordings that the text and the page of a benchmark share, so that both say the same of the same figures."""

from __future__ import annotations

from coldctl.results.bench import BenchResult, Comparison, HostMemory, Regression, Summary, Timeline
from coldctl.results.bench_runs import median_run
from coldctl.units import format_moment, format_size

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
    """How much faster the peer was, `1.19 times as fast (95 %: 1.10 to 1.54)`, where even the bounds say so."""
    if comparison.high >= 1:
        return None
    ratio, low, high = 1 / comparison.ratio, 1 / comparison.high, 1 / comparison.low
    return f"{ratio:.2f} times as fast (95 %: {low:.2f} to {high:.2f})"


def bounds(ratio: Comparison | Regression) -> str:
    """`95 %: 0.59 to 1.30`."""
    return f"95 %: {ratio.low:.2f} to {ratio.high:.2f}"


def before_load(memory: HostMemory) -> str:
    """What to say beside a peak, which is of the whole process: that of a small load may be that of its imports."""
    return f"{format_size(memory.before_anon_bytes)} before the load"


def beside_rounds(timeline: Timeline, summary: Summary) -> str | None:
    """`this load 0.67 s; the rounds 0.11 s to 0.74 s`: a timeline is of one more load, which may have been another."""
    if summary.min_seconds is None or summary.max_seconds is None:
        return None
    low, high = format_moment(summary.min_seconds), format_moment(summary.max_seconds)
    rounds = f"the rounds {low} to {high}" if summary.runs > 1 else f"the one round {low}"
    return f"this load {format_moment(timeline.seconds)}; {rounds}"


def outside_rounds(timeline: Timeline, summary: Summary) -> str | None:
    """How to read a timeline whose load took longer, or less long, than every round; None where it lies among them."""
    if summary.min_seconds is None or summary.max_seconds is None:
        return None
    if summary.min_seconds <= timeline.seconds <= summary.max_seconds:
        return None
    how = "slower" if timeline.seconds > summary.max_seconds else "faster"
    return f"{how} than every round: read it for the order of things, not for the figures"
