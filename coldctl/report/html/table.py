"""Tables of data: the first column names the row, all others are figures; a wide one scrolls inside its own box."""

from __future__ import annotations

from collections.abc import Sequence

from coldctl.report.html.markup import Child, Safe, element


def data_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Child]], class_: str = "data") -> Safe:
    """A cell that is None was not measured, and is left empty but for a dash."""
    titles = element("tr", *(element("th", title, scope="col") for title in head))
    table = element(
        "table",
        element("caption", caption),
        element("thead", titles),
        element("tbody", *(_row(row) for row in rows)),
        class_=class_,
    )
    return scrolling(caption, table)


def scrolling(label: str, table: Safe) -> Safe:
    """The box of a table, which scrolls where the screen is too narrow for it."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def _row(row: Sequence[Child]) -> Safe:
    first, *rest = row
    return element("tr", element("th", first, scope="row"), *(_cell(cell) for cell in rest))


def _cell(cell: Child) -> Safe:
    return element("td", "–", class_="none") if cell is None else element("td", cell)
