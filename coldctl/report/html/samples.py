"""Every run as a dot, with the median and the range of each way to load."""

from __future__ import annotations

from coldctl.report.html.chart import Row, chart, dot, legend, percent
from coldctl.report.html.facts import name_of, peers
from coldctl.report.html.markup import Child, Safe, element, join
from coldctl.report.html.scale import Scale, around
from coldctl.report.html.section import CACHES, section
from coldctl.report.runs import cache_states, ranked, runs_of
from coldctl.results.bench import BenchResult, BenchRun, CacheState, Summary
from coldctl.units import format_moment

_LANES = (16, 11, 21, 7, 25)
"""Heights of the dots in pixels, in turn, so that equal runs do not hide each other."""


def samples_section(result: BenchResult) -> Safe:
    charts = [_of_cache(result, cache) for cache in cache_states(result)]
    return section(
        "Every run",
        "One dot is one load in a process of its own. The bar marks the median, the line goes from the fastest to the "
        "slowest. Less is better; the axis need not begin at 0.",
        legend(
            (dot("sample"), "coldctl"),
            (dot("sample peer"), "peer"),
            (element("rect", class_="median", x=7, width=2, height=12), "median"),
        ),
        *charts,
    )


def _of_cache(result: BenchResult, cache: CacheState) -> Safe:
    others = peers(result)
    rows = {summary.contender: runs_of(result, summary.contender, cache) for summary in ranked(result, cache)}
    scale = around([run.seconds for runs in rows.values() for run in runs if run.seconds is not None])
    drawn = [_row(summary, rows[summary.contender], scale, others) for summary in ranked(result, cache)]
    title = CACHES[cache]
    return join([element("h3", title), chart(drawn, scale, "seconds", label=f"{title}: seconds of every run")])


def _row(summary: Summary, runs: list[BenchRun], scale: Scale, others: set[str]) -> Row:
    label = name_of(summary.contender, others)
    low, median, high = summary.min_seconds, summary.median_seconds, summary.max_seconds
    if low is None or median is None or high is None:
        return Row(label, join([]), _failed(summary), f"{summary.contender}: no run succeeded")
    kind = "sample peer" if summary.contender in others else "sample"
    marks = [
        element("line", class_="range", x1=percent(scale.at(low)), x2=percent(scale.at(high)), y1=16, y2=16),
        *(_dot(run, scale, kind, _LANES[i % len(_LANES)]) for i, run in enumerate(runs)),
        element(
            "rect", class_="median", x=percent(scale.at(median)), y=3, width=2, height=26, transform="translate(-1)"
        ),
    ]
    words = f"{summary.contender}: median {format_moment(median)}, from {format_moment(low)} to {format_moment(high)}"
    return Row(label, join(marks), join([format_moment(median), _failed(summary)]), words)


def _dot(run: BenchRun, scale: Scale, kind: str, y: float) -> Safe:
    seconds = run.seconds or 0.0
    title = element("title", f"round {run.round + 1}: {seconds:.3f} s")
    return element("circle", title, class_=kind, cx=percent(scale.at(seconds)), cy=y, r=3.25)


def _failed(summary: Summary) -> Child:
    return element("small", f"{summary.failed} failed", class_="bad") if summary.failed else None
