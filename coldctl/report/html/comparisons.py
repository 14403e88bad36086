"""Ratios with their bounds: coldctl beside the peers, and this result beside its baseline."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from coldctl.report.html.chart import Row, chart, percent
from coldctl.report.html.markup import NOTHING, Child, Safe, element, join
from coldctl.report.html.scale import Ratio
from coldctl.report.html.section import CACHES, section, sentence
from coldctl.report.runs import cache_states
from coldctl.report.text.bench_phrases import NOTHING_JUDGED, bounds
from coldctl.results.bench import BenchResult, CacheState, Comparison, Regression


def peers_section(result: BenchResult) -> Safe:
    if not result.comparisons:
        return NOTHING
    scale = _scale((each.low, each.ratio, each.high) for each in result.comparisons)
    return section(
        "Beside the peers",
        "Throughput of coldctl's best way divided by the peer's, round by round: the median of these ratios, which "
        "need not be the ratio of the medians, with the bootstrap's 95 % bounds. To the right of 1, coldctl was "
        "faster; where the line crosses 1, these rounds do not tell.",
        *(_peers(result, cache, scale) for cache in cache_states(result)),
    )


def _peers(result: BenchResult, cache: CacheState, scale: Ratio) -> Safe:
    versions = {contender.name: contender.version for contender in result.contenders}
    chosen = [each for each in result.comparisons if each.cache == cache]
    rows = [_peer(each, versions.get(each.peer), scale) for each in chosen]
    if not rows:
        return NOTHING
    return join(
        [
            element("h3", CACHES[cache]),
            chart(rows, scale, "times as fast", label=f"{CACHES[cache]}: ratios", reference=1),
        ]
    )


def _peer(each: Comparison, version: str | None, scale: Ratio) -> Row:
    peer = f"{each.peer} {version}" if version else each.peer
    label = join([element("span", each.contender, class_="name"), element("small", f"beside {peer}")])
    return _ratio(label, each, f"{each.contender} beside {each.peer}", "times as fast", "", scale)


def regressions_section(result: BenchResult) -> Safe:
    if result.regressions is None:
        return NOTHING
    if not result.regressions:
        return section("Against the baseline", sentence(NOTHING_JUDGED))
    scale = _scale((each.low, each.ratio, each.high) for each in result.regressions)
    rows = [_regression(each, scale) for each in result.regressions]
    return section(
        "Against the baseline",
        "Median seconds now divided by those of the baseline, with the bootstrap's 95 % bounds. To the right of 1, "
        "loads are slower now.",
        chart(rows, scale, "times as long", label="Ratios to the baseline", reference=1),
    )


def _regression(each: Regression, scale: Ratio) -> Row:
    verdict = element("b", "▲ regressed: ", class_="bad") if each.regressed else None
    told = element("small", verdict, sentence(each.reason) if not verdict else each.reason)
    label = join([element("span", each.contender, class_="name"), f" {each.cache}", told])
    what = f"{each.contender} {each.cache}"
    return _ratio(label, each, what, "times as long", " bad" if each.regressed else "", scale)


def _ratio(label: Child, each: Comparison | Regression, what: str, unit: str, class_: str, scale: Ratio) -> Row:
    low, ratio, high = (percent(scale.at(value)) for value in (each.low, each.ratio, each.high))
    marks = join(
        [
            element("line", class_=f"bounds{class_}", x1=low, x2=high, y1=16, y2=16),
            element("circle", class_=f"ratio{class_}", cx=ratio, cy=16, r=5),
        ]
    )
    told = f"{each.ratio:.2f} {unit}"
    figure = join([told, element("small", bounds(each))])
    return Row(label, marks, figure, f"{what}: {told}, {bounds(each)}")


def _scale(ratios: Iterable[tuple[float, float, float]]) -> Ratio:
    """Wide enough for all bounds, on either side of 1."""
    return Ratio(max(1.1, *(max(value, 1 / value) for value in chain.from_iterable(ratios))) * 1.05)
