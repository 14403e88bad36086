"""Aligned columns, two spaces apart, that stay the same on a terminal and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "  ") -> list[str]:
    """The lines of a table; the columns named in `right` are set flush right. Cells are printed as they are."""
    if not rows:
        return []
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return [
        (
            indent
            + "  ".join(_pad(cell, width, i in right) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        ).rstrip()
        for row in rows
    ]


def _pad(cell: str, width: int, right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if right else cell + room


def _width(text: str) -> int:
    """Columns that a terminal gives to `text`: two for wide East Asian characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
