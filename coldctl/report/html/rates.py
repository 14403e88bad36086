"""What was read and copied in each moment of a run, as two curves on the timeline's axis."""

from __future__ import annotations

from coldctl.report.html.chart import Entry, drawing, legend, stretched, stroke
from coldctl.report.html.markup import NOTHING, Safe, element, join
from coldctl.report.html.scale import Linear, nice_step
from coldctl.report.rates import copy_spans, rate_over_time, read_spans
from coldctl.results.bench import Timeline
from coldctl.units import format_rate

BINS = 80
_HEIGHT = 150
_WORDS = {"read": "read", "copy": "copied to the device"}
_TOP = 18
"""Pixels above the highest curve, for its label."""


def rates(timeline: Timeline, scale: Linear, limit: tuple[str, float] | None, behind: Safe, *more: Entry) -> Safe:
    """The curves, with the limit (its words and bytes per second) as a dashed line, and a legend that has `more` too.

    Where no bytes have a time there is only the legend.
    """
    moved = {"read": read_spans(timeline.spans), "copy": copy_spans(timeline.spans)}
    curves = {kind: curve for kind, spans in moved.items() if (curve := rate_over_time(spans, BINS))}
    if not curves:
        return element("li", legend(*more)) if more else NOTHING
    tops = {kind: max(rate for _, rate in curve) for kind, curve in curves.items()}
    high = max([*tops.values(), limit[1] if limit else 0.0])
    told = [f"{_WORDS[kind]}: up to {format_rate(top)}" for kind, top in tops.items()]
    levels = _levels(high)
    marks = [_lines(levels), *(_curve(kind, curve, high, scale) for kind, curve in curves.items())]
    marks += [_limit(limit, high) if limit else NOTHING, _labels(levels)]
    entries = [(stroke(f"curve {kind}"), _WORDS[kind]) for kind in curves]
    entries += [(stroke("limit dashed"), limit[0])] if limit else []
    drawn = drawing(_HEIGHT, "Rate over time. " + "; ".join(told), behind, *marks)
    return element(
        "li",
        element("div", "Rate", element("small", "GB/s over time"), class_="label"),
        element("div", drawn, legend(*entries, *more), class_="drawn"),
        class_="row rates",
    )


def _levels(high: float) -> list[tuple[float, str]]:
    """Whole rates: the height of each in pixels, and its label."""
    step = nice_step(high / 1e9, 3)
    whole = range(1, int(high / 1e9 / step + 1e-9) + 1)
    return [(round(_y(i * step * 1e9, high), 1), f"{i * step:g}") for i in whole]


def _lines(levels: list[tuple[float, str]]) -> Safe:
    return join(element("line", class_="grid", x1="0", x2="100%", y1=y, y2=y) for y, _ in levels)


def _labels(levels: list[tuple[float, str]]) -> Safe:
    """To be drawn last: no line crosses them, since their halo hides what lies under it."""
    return join(element("text", text, class_="level", x=4, y=y - 4) for y, text in levels)


def _curve(kind: str, curve: list[tuple[float, float]], high: float, scale: Linear) -> Safe:
    """Steps over the bins; (start in seconds, bytes per second) each, with 0 at the end."""
    steps = "".join(f"H{10 * scale.at(seconds):.1f}V{_y(rate, high):.1f}" for seconds, rate in curve)
    area = element("path", class_="area", d=f"M0 {_HEIGHT}{steps}z") if kind == "read" else None
    return stretched(1000, _HEIGHT, area, element("path", class_=f"curve {kind}", d=f"M0 {_HEIGHT}{steps}H1000"))


def _limit(limit: tuple[str, float], high: float) -> Safe:
    y = round(_y(limit[1], high), 1)
    return element("line", element("title", limit[0]), class_="limit dashed", x1="0", x2="100%", y1=y, y2=y)


def _y(rate: float, high: float) -> float:
    return _HEIGHT - (_HEIGHT - _TOP) * rate / high
