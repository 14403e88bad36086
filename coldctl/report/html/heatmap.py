"""The sweep: one map of streams and chunks for each mode, order and cache state, coloured by rate."""

from __future__ import annotations

from collections import defaultdict

from coldctl.report.html.markup import NOTHING, Safe, element
from coldctl.report.html.section import CACHES, section
from coldctl.report.html.table import scrolling
from coldctl.report.runs import cache_states
from coldctl.results.bench import BenchResult, CacheState, Contender, Summary
from coldctl.units import format_rate, format_size

SHADES = 7

Cells = dict[tuple[int | None, int | None], Summary]
"""By streams and bytes of a chunk; null is the loader's default."""


def sweep_section(result: BenchResult) -> Safe:
    parts = [part for cache in cache_states(result) for part in _of_cache(result, cache)]
    if not parts:
        return NOTHING
    lead = "Median rate in GB/s by streams (down) and chunk (across). The highest of each map is framed."
    return section("Sweep", lead, *parts)


def _of_cache(result: BenchResult, cache: CacheState) -> list[Safe]:
    maps = {name: cells for name, cells in _maps(result, cache).items() if len(cells) > 1}
    rates = [rate for cells in maps.values() for each in cells.values() if (rate := each.bytes_per_second)]
    if not rates:
        return []
    low, high = min(rates), max(rates)
    drawn = element("div", *(_map(name, cells, low, high) for name, cells in maps.items()), class_="maps")
    return [element("h3", CACHES[cache]), _key(low, high), drawn]


def _maps(result: BenchResult, cache: CacheState) -> dict[str, Cells]:
    """The cells of each map by its name: the mode, and the order where one was asked for."""
    ways = {contender.name: contender for contender in result.contenders if contender.kind == "coldctl"}
    maps: dict[str, Cells] = defaultdict(dict)
    for summary in result.summaries:
        if summary.cache == cache and (way := ways.get(summary.contender)):
            maps[_name(way)][way.streams, way.chunk_bytes] = summary
    return maps


def _name(way: Contender) -> str:
    return (way.mode or "auto") + (f", order {way.order}" if way.order else "")


def _map(name: str, cells: Cells, low: float, high: float) -> Safe:
    streams = sorted({key[0] for key in cells}, key=lambda value: value or 0)
    chunks = sorted({key[1] for key in cells}, key=lambda value: value or 0)
    top = max((each.bytes_per_second or 0 for each in cells.values()), default=0)
    head = element(
        "tr", element("td", "streams, chunk"), *(element("th", _chunk(chunk), scope="col") for chunk in chunks)
    )
    rows = [
        element(
            "tr",
            element("th", _streams(stream), scope="row"),
            *(_cell(cells.get((stream, chunk)), low, high, top) for chunk in chunks),
        )
        for stream in streams
    ]
    caption = element("caption", name)
    table = element("table", caption, element("thead", head), element("tbody", *rows), class_="heat")
    return scrolling(name, table)


def _cell(summary: Summary | None, low: float, high: float, top: float) -> Safe:
    if summary is None:
        return element("td")
    rate = summary.bytes_per_second
    if rate is None:
        return element("td", "failed", class_="bad", title=summary.error)
    return element("td", f"{rate / 1e9:.2f}", class_=f"h{_shade(rate, low, high)}" + (" top" if rate == top else ""))


def _shade(rate: float, low: float, high: float) -> int:
    return 0 if high == low else min(int((rate - low) / (high - low) * SHADES), SHADES - 1)


def _key(low: float, high: float) -> Safe:
    shades = [element("span", class_=f"shade h{shade}") for shade in range(SHADES)]
    return element("p", format_rate(low), element("span", *shades, aria_hidden="true"), format_rate(high), class_="key")


def _streams(value: int | None) -> str:
    return "default" if value is None else f"{value}"


def _chunk(value: int | None) -> str:
    return "default" if value is None else format_size(value).replace(".0 ", " ")
