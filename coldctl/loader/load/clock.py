"""Times that overlap: unions of intervals, never sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Interval = tuple[float, float]
"""Begin and end in seconds, on one clock."""


class Timed(NamedTuple):
    """A read or a copy: when, of how many bytes, and the first tensor that was concerned."""

    begin_seconds: float
    end_seconds: float
    nbytes: int
    tensor: str

    @property
    def interval(self) -> Interval:
        return self.begin_seconds, self.end_seconds


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The times that any of `intervals` covers, in order, apart from each other."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def covered_seconds(intervals: Iterable[Interval]) -> float:
    """How long any of `intervals` went on."""
    return sum(end - begin for begin, end in union(intervals))


def overlap_share(lanes: Iterable[Iterable[Interval]]) -> float:
    """Of the time in which any lane was busy, the share in which two or more were. 0 when none was."""
    merged = [union(lane) for lane in lanes]
    edges = sorted((time, step) for lane in merged for begin, end in lane for time, step in ((begin, 1), (end, -1)))
    busy_seconds = shared_seconds = last_seconds = 0.0
    at_once = 0
    for seconds, step in edges:
        busy_seconds += (seconds - last_seconds) * (at_once >= 1)
        shared_seconds += (seconds - last_seconds) * (at_once >= 2)
        at_once, last_seconds = at_once + step, seconds
    return shared_seconds / busy_seconds if busy_seconds else 0.0
