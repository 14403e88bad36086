"""Charts of rows: a label, a drawing as wide as there is room, and a figure; all on one scale with its axis below.

Places along the drawing are per cent of its width, places across it CSS pixels: text keeps its size on every screen.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.report.html.markup import NOTHING, Child, Safe, element, join
from coldctl.report.html.scale import Scale

ROW_HEIGHT = 32
SHOWN_ROWS = 24

Entry = tuple[Safe, str]
"""Of a legend: a mark, and what marks like it mean."""


@dataclass(frozen=True, slots=True)
class Row:
    """`title` says in words what `marks` show, for those who cannot see them."""

    label: Child
    marks: Safe
    figure: Child
    title: str


def chart(rows: list[Row], scale: Scale, unit: str, *, label: str, reference: float | None = None) -> Safe:
    """`rows` above the axis of `scale`, whose values are in `unit`, with a line at `reference`; long ones fold."""
    line = None if reference is None else upright(scale.at(reference), "limit")
    drawn = [row_of(row, join([grid(scale), line])) for row in rows]
    first, rest = drawn[:SHOWN_ROWS], drawn[SHOWN_ROWS:]
    return join(
        [
            element("ul", *first, axis(scale, unit), class_="chart", aria_label=label),
            folded(f"{len(rest)} more", element("ul", *rest, axis(scale, unit), class_="chart")) if rest else None,
        ]
    )


def folded(summary: Child, *children: Child, opened: bool = False) -> Safe:
    """What opens at a click on `summary`."""
    return element("details", element("summary", summary), *children, open=opened)


def drawing(height: int, title: str, *children: Child) -> Safe:
    """A picture of full width and `height` pixels, whose meaning in words is `title`."""
    return element("svg", *children, class_="plot", height=height, role="img", aria_label=title)


def stretched(width: int, height: int, *children: Child) -> Safe:
    """Inside a drawing: a space of `width` by `height` units that is stretched over all of its width."""
    return element(
        "svg", *children, viewBox=f"0 0 {width} {height}", preserveAspectRatio="none", width="100%", height=height
    )


def axis(scale: Scale, unit: str) -> Safe:
    marks = join(
        element("text", text, x=percent(scale.at(value)), y=15, text_anchor="middle") for value, text in scale.ticks()
    )
    svg = element("svg", marks, class_="plot", height=20)
    return element("li", _cell("label", unit), _cell("drawn", svg), class_="row axis", aria_hidden="true")


def grid(scale: Scale) -> Safe:
    return join(upright(scale.at(value), "grid") for value, _ in scale.ticks())


def upright(at_percent: float, class_: str) -> Safe:
    """A line over the whole height of a drawing."""
    return element("line", class_=class_, x1=percent(at_percent), x2=percent(at_percent), y1="0", y2="100%")


def bar(begin: float, end: float, y: float, height: float, class_: str) -> Safe:
    """A rectangle from `begin` to `end`, both in per cent of the width."""
    return element(
        "rect",
        class_=class_,
        x=percent(begin),
        width=percent(end - begin),
        y=y,
        height=height,
    )


def percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def legend(*entries: Entry) -> Safe:
    """What marks like these (`patch`, `stroke`, `dot`) mean."""
    return element("p", *(_entry(*entry) for entry in entries), class_="legend")


def patch(class_: str) -> Safe:
    return element("rect", class_=class_, width=16, height=10, y=1)


def stroke(class_: str) -> Safe:
    return element("line", class_=class_, x1=0, x2=16, y1=6, y2=6)


def dot(class_: str) -> Safe:
    return element("circle", class_=class_, cx=8, cy=6, r=4)


def _entry(mark: Safe, words: str) -> Safe:
    return element("span", element("svg", mark, width=16, height=12, aria_hidden="true"), words)


def row_of(row: Row, behind: Safe, height: int = ROW_HEIGHT) -> Safe:
    """One row; `behind` reaches over its whole height, and the marks stand in its middle, `height` pixels high."""
    centred = element("g", row.marks, transform=f"translate(0 {-height / 2:g})")
    middle = element("svg", centred, y="50%", class_="plot")
    return element(
        "li",
        _cell("label", row.label),
        _cell("drawn", drawing(height, row.title, behind, middle)),
        _cell("figure", row.figure),
        class_="row",
    )


def _cell(class_: str, child: Child) -> Safe:
    return element("div", child, class_=class_) if child is not None else NOTHING
