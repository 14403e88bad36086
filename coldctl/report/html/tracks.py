"""The spans of a run by track: in the order in which they are drawn, merged to what a screen can show."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from coldctl.report.bench_words import STAGES
from coldctl.results.load import Span

CELLS = 1500
"""A timeline's width in the smallest parts that are told apart."""

_KINDS = {
    "read": "read",
    "touch": "read",
    "reader": "read",
    "h2d": "copy",
    "copy": "copy",
    "plain": "copy",
    "verify": "verify",
}


@dataclass(frozen=True, slots=True)
class Track:
    """`kind` is `read`, `copy`, `verify` or `prepare`; `busy` the merged (begin, end) pairs, in cells."""

    name: str
    kind: str
    spans: int
    bytes: int
    busy_seconds: float
    busy: list[tuple[int, int]]


def tracks(spans: Iterable[Span], seconds: float) -> list[Track]:
    """Stages in their order, readers by number, copies, then all else. What lies before the load has no place on its
    axis, and is left out: `stage_table` draws it."""
    by_track: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.start_seconds + span.seconds > 0:
            by_track[span.track].append(span)
    # The sort is stable: lanes stay in the order in which they began.
    return [_track(name, by_track[name], seconds) for name in sorted(by_track, key=_place)]


def kind_of(track: str) -> str:
    return _KINDS.get(track.split(" ")[0], "prepare")


def merged(intervals: Iterable[tuple[float, float]], seconds: float, cells: int = CELLS) -> list[tuple[int, int]]:
    """(begin, end) pairs in seconds as pairs of whole cells of 0 to `seconds`; what touches or overlaps becomes one."""
    pairs: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        first = min(max(math.floor(begin / seconds * cells), 0), cells - 1)
        last = min(max(math.ceil(end / seconds * cells), first + 1), cells)
        if pairs and first <= pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], max(pairs[-1][1], last))
        else:
            pairs.append((first, last))
    return pairs


def _track(name: str, spans: list[Span], seconds: float) -> Track:
    intervals = sorted((max(span.start_seconds, 0.0), span.start_seconds + span.seconds) for span in spans)
    total_bytes = sum(span.bytes for span in spans)
    return Track(name, kind_of(name), len(spans), total_bytes, _covered(intervals), merged(intervals, seconds))


def _covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds in which any of the sorted `intervals` went on."""
    covered = until = 0.0
    for begin, end in intervals:
        covered += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return covered


def _place(track: str) -> tuple[int, int]:
    if track in STAGES:
        return 0, list(STAGES).index(track)
    number = re.search(r"\d{1,9}", track)
    return {"read": 1, "copy": 2}.get(kind_of(track), 3), int(number.group()) if number else 0
