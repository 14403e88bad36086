"""How near each way to load came to the limit that holds it."""

from __future__ import annotations

from coldctl.report.html.chart import Row, bar, chart
from coldctl.report.html.facts import limit_rate, limit_words, name_of, peers
from coldctl.report.html.markup import NOTHING, Safe, element, join
from coldctl.report.html.scale import Linear, Scale, linear
from coldctl.report.html.section import CACHES, section
from coldctl.report.runs import cache_states, ranked
from coldctl.report.text.bench_phrases import NO_LIMIT, has_no_limit
from coldctl.results.bench import BenchResult, CacheState, Summary
from coldctl.units import format_rate, format_ratio


def shares_section(result: BenchResult) -> Safe:
    measured = [summary for summary in result.summaries if summary.limit_share is not None]
    if not measured:
        return NOTHING
    scale = linear([100, *(100 * (summary.limit_share or 0) for summary in measured)], " %")
    return section(
        "Shares of the limits",
        "The median rate of each way to load beside the limit that it has to be measured by, which was measured on "
        "this machine in the same session. Beyond 100 %, the load was faster than the measurement of its limit.",
        *(_of_cache(result, cache, scale) for cache in cache_states(result)),
    )


def _of_cache(result: BenchResult, cache: CacheState, scale: Linear) -> Safe:
    loaded = [summary for summary in ranked(result, cache) if summary.runs]
    measured = [summary for summary in loaded if summary.limit_share is not None]
    limits = dict.fromkeys(summary.limit or "its limit" for summary in measured)
    charts = [_of_limit(result, cache, limit, measured, scale) for limit in limits]
    unlimited = [summary for summary in loaded if has_no_limit(result, summary)]
    unmeasured = [each for each in loaded if each.limit_share is None and each not in unlimited]
    return join(
        [
            *charts,
            _remark(f"{CACHES[cache]}, and without a measured limit", unmeasured),
            _remark(f"{CACHES[cache]}, {NO_LIMIT}", unlimited),
        ]
    )


def _remark(what: str, summaries: list[Summary]) -> Safe | None:
    names = ", ".join(summary.contender for summary in summaries)
    return element("p", f"{what}: {names}.", class_="remark") if names else None


def _of_limit(result: BenchResult, cache: CacheState, limit: str, summaries: list[Summary], scale: Linear) -> Safe:
    others = peers(result)
    rate = limit_rate(result.limits, limit)
    words = limit_words(limit) + (f": {format_rate(rate)}" if rate else "")
    rows = [_row(summary, scale, words, others) for summary in summaries if (summary.limit or "its limit") == limit]
    label = f"{CACHES[cache]}: share of {words}"
    heading = element("h3", CACHES[cache], ", beside ", element("span", words, class_=f"limited {cache}"))
    return join([heading, chart(rows, scale, "of the limit", label=label, reference=100)])


def _row(summary: Summary, scale: Scale, limit: str, others: set[str]) -> Row:
    share = 100 * (summary.limit_share or 0)
    told = format_ratio(share / 100)
    kind = " peer" if summary.contender in others else ""
    marks = [
        bar(0, scale.at(min(share, 100)), 10, 12, f"fill {summary.cache}{kind}"),
        bar(scale.at(100), scale.at(share), 10, 12, "beyond") if share > 100 else None,
    ]
    rate = format_rate(summary.bytes_per_second) if summary.bytes_per_second is not None else None
    figure = join([element("span", rate, class_="muted"), element("span", told, class_="told")], separator=" ")
    words = f"{summary.contender}: {rate}, {told} of {limit}"
    return Row(name_of(summary.contender, others), join(marks), figure, words)
