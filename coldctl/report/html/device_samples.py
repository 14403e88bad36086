"""What the driver said about the device over time, one small curve a quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from coldctl.report.html.chart import Row, axis, grid, percent, row_of
from coldctl.report.html.markup import Safe, element, join
from coldctl.report.html.scale import Linear
from coldctl.results.bench import DeviceSample
from coldctl.units import GIB

_HEIGHT = 56
_QUANTITIES: tuple[tuple[str, str, Callable[[DeviceSample], float | None]], ...] = (
    ("Memory used", "GiB", lambda each: _scaled(each.used_bytes, GIB)),
    ("Utilisation", "%", lambda each: _scaled(each.utilisation_share, 0.01)),
    ("Memory utilisation", "%", lambda each: _scaled(each.memory_utilisation_share, 0.01)),
    ("PCIe, received", "GB/s", lambda each: _scaled(each.pcie_received_bytes_per_second, 1e9)),
    ("PCIe, sent", "GB/s", lambda each: _scaled(each.pcie_sent_bytes_per_second, 1e9)),
    ("Power", "W", lambda each: each.power_watts),
)


def curves(samples: Sequence[DeviceSample]) -> list[Safe]:
    """Quantities that the driver did not tell are left out."""
    if not samples:
        return []
    scale = Linear(max(sample.seconds for sample in samples) or 1.0)
    rows = []
    for name, unit, quantity in _QUANTITIES:
        points = [(each.seconds, value) for each in samples if (value := quantity(each)) is not None]
        if points:
            rows.append(_row(name, unit, points, scale))
    axis_row = axis(scale, "seconds of the process")
    return [element("ul", *rows, axis_row, class_="chart")] if rows else []


def _row(name: str, unit: str, points: list[tuple[float, float]], scale: Linear) -> Safe:
    high = max(value for _, value in points)
    marks = [_dot(seconds, value, high, unit, scale) for seconds, value in points]
    joined = [_line(first, second, high, scale) for first, second in pairwise(points)]
    words = f"{name}: up to {high:.4g} {unit} in {len(points)} samples"
    figure = join([f"{high:.4g} {unit}", element("small", "highest")])
    floor = element("line", class_="grid", x1="0", x2="100%", y1=_HEIGHT - 4, y2=_HEIGHT - 4)
    return row_of(Row(name, join([floor, *joined, *marks]), figure, words), grid(scale), _HEIGHT)


def _line(first: tuple[float, float], second: tuple[float, float], high: float, scale: Linear) -> Safe:
    return element(
        "line",
        class_="sampled",
        x1=percent(scale.at(first[0])),
        x2=percent(scale.at(second[0])),
        y1=_y(first[1], high),
        y2=_y(second[1], high),
    )


def _dot(seconds: float, value: float, high: float, unit: str, scale: Linear) -> Safe:
    title = element("title", f"{value:.4g} {unit} at {seconds:.1f} s")
    return element("circle", title, class_="sampled", cx=percent(scale.at(seconds)), cy=_y(value, high), r=2.5)


def _y(value: float, high: float) -> float:
    return round(_HEIGHT - 4 - (_HEIGHT - 8) * value / (high or 1.0), 1)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
