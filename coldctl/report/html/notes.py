"""What the bench had to remark."""

from __future__ import annotations

from coldctl.report.html.markup import NOTHING, Safe, element
from coldctl.report.html.section import section, sentence
from coldctl.results.bench import BenchResult


def notes_section(result: BenchResult) -> Safe:
    if not result.notes:
        return NOTHING
    return section(
        "Notes", None, element("ul", *(element("li", sentence(note)) for note in result.notes), class_="notes")
    )
