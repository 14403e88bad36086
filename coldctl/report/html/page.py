"""The page of a bench result."""

from __future__ import annotations

from coldctl.report.html.comparisons import peers_section, regressions_section
from coldctl.report.html.counting import counting_section
from coldctl.report.html.device import device_section
from coldctl.report.html.figures import bounds_section, failures_section, figures_section
from coldctl.report.html.heatmap import sweep_section
from coldctl.report.html.machine import host_section, limits_section
from coldctl.report.html.markup import Safe, element
from coldctl.report.html.memory import memory_section
from coldctl.report.html.notes import notes_section
from coldctl.report.html.residency import residency_section
from coldctl.report.html.samples import samples_section
from coldctl.report.html.shares import shares_section
from coldctl.report.html.style import policy, sheet
from coldctl.report.html.timeline import timeline_section
from coldctl.report.html.verdict import checkpoint_name, header
from coldctl.results.bench import BenchResult

MARK = b"coldctl.bench-page/1"
"""Stands near the beginning of every page that `page` makes."""

_SECTIONS = (
    regressions_section,
    samples_section,
    shares_section,
    timeline_section,
    peers_section,
    sweep_section,
    figures_section,
    bounds_section,
    failures_section,
    residency_section,
    memory_section,
    device_section,
    limits_section,
    host_section,
    notes_section,
    counting_section,
)
"""In the order of the page. Each gives nothing where nothing was measured."""


def page(result: BenchResult) -> str:
    """`result` as one HTML page that needs nothing else: no script, and no style, font or image from elsewhere.

    What was not measured is not drawn. The page says what the result says; it judges nothing itself.
    """
    head = element(
        "head",
        Safe('<meta charset="utf-8">'),
        Safe(f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'),
        Safe(f'<meta name="generator" content="{MARK.decode()}">'),
        Safe('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Safe('<meta name="color-scheme" content="light dark">'),
        Safe('<meta name="referrer" content="no-referrer">'),
        element("title", f"coldctl bench: {checkpoint_name(result)}"),
        element("style", Safe(sheet())),
    )
    main = element("main", *(section(result) for section in _SECTIONS))
    body = element("body", header(result), main)
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"
