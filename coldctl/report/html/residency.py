"""The page cache of the checkpoint's files before and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from coldctl.report.html.chart import axis, bar, drawing, folded, stretched
from coldctl.report.html.facts import name_of, peers
from coldctl.report.html.markup import NOTHING, Safe, element, join
from coldctl.report.html.scale import Linear
from coldctl.report.html.section import section
from coldctl.results.bench import BenchResult, ResidencyMap
from coldctl.units import format_share, format_size

CELLS = 200
SHOWN = 8
_HEIGHT = 16


def residency_section(result: BenchResult) -> Safe:
    known = [each for each in result.residency if each.before is not None or each.after is not None]
    if not known:
        return NOTHING
    others = peers(result)
    drawn = [_row(each, others) for each in known]
    more = folded(f"{len(drawn) - SHOWN} more", element("ul", *drawn[SHOWN:], _axis(), class_="chart"))
    return section(
        "Residency before and after",
        "What of the checkpoint was in the page cache, file after file from left to right: the higher the fill, the "
        "more of that part. Direct reads leave the cache as it was." + _sampled(result),
        element("ul", *drawn[:SHOWN], _axis(), class_="chart"),
        more if len(drawn) > SHOWN else None,
    )


def _sampled(result: BenchResult) -> str:
    """By how much the runs' residency may be off, at most; nothing where the kernel told all of it exactly."""
    bound_bytes = max((run.resident_bound_bytes or 0 for run in result.runs), default=0)
    if not bound_bytes:
        return ""
    return f" Pages were sampled: what was in memory before a run is known within {format_size(bound_bytes)}."


def _axis() -> Safe:
    return axis(Linear(100, suffix=" %"), "through the files")


def _row(each: ResidencyMap, others: set[str]) -> Safe:
    bands = [
        (when, band(cells, f"{each.contender}, {each.cache}, {when} the run"), _mean(cells))
        for when, cells in (("before", each.before), ("after", each.after))
        if cells
    ]
    label = join([name_of(each.contender, others), element("small", each.cache)])
    return element(
        "li",
        element("div", label, class_="label"),
        element("div", *(drawn for _, drawn, _ in bands), class_="drawn bands"),
        element("div", *(element("small", f"{when} {share}") for when, _, share in bands), class_="figure bands"),
        class_="row banded",
    )


def band(cells: Sequence[float], what: str) -> Safe:
    """One strip: each cell filled to the height of its share."""
    reduced = reduce(cells)
    path = []
    place = 0
    for share, group in groupby(reduced, key=lambda share: round(share * _HEIGHT)):
        width = len(list(group))
        if share:
            path.append(f"M{place} {_HEIGHT}v-{share}h{width}v{share}z")
        place += width
    fill = stretched(len(reduced), _HEIGHT, element("path", class_="resident", d="".join(path)))
    return drawing(_HEIGHT, f"{what}: {_mean(cells)} resident", bar(0, 100, 0, _HEIGHT, "rail"), fill)


def reduce(cells: Sequence[float]) -> list[float]:
    """`cells` as at most CELLS means of neighbours."""
    count = min(len(cells), CELLS)
    edges = [len(cells) * i // count for i in range(count + 1)]
    return [sum(cells[a:b]) / (b - a) for a, b in pairwise(edges)]


def _mean(cells: Sequence[float]) -> str:
    return format_share(int(sum(cells) / len(cells) * 1e6), 10**6)
