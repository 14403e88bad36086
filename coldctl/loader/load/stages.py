"""When each stage of a load went on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from coldctl.loader.load.clock import Interval, covered_seconds
from coldctl.results.load import Span, Stage

NAMES = ("plan", "allocate", "pin", "read", "h2d", "verify")


class Stages:
    """Intervals by stage, on the clock of time.perf_counter, and the bytes that each moved."""

    def __init__(self) -> None:
        self.begun_seconds = time.perf_counter()
        self._intervals: dict[str, list[Interval]] = defaultdict(list)
        self._bytes: dict[str, int] = defaultdict(int)

    @contextmanager
    def timed(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """The stage goes on while the block runs, and moves `nbytes`."""
        begun_seconds = time.perf_counter()
        yield
        self.add(name, [(begun_seconds, time.perf_counter())], nbytes)

    def add(self, name: str, intervals: Iterable[Interval], nbytes: int = 0) -> None:
        self._intervals[name] += intervals
        self._bytes[name] += nbytes

    def results(self) -> tuple[Stage, ...]:
        return tuple(self._result(name) for name in NAMES if self._intervals[name])

    def spans(self) -> Iterator[Span]:
        """Every interval of every stage. Those of read and h2d are left out: readers and copies have them."""
        for name in NAMES:
            for begin, end in sorted(self._intervals[name] if name not in ("read", "h2d") else ()):
                yield Span(name, name, begin - self.begun_seconds, end - begin, 0)

    def _result(self, name: str) -> Stage:
        intervals = self._intervals[name]
        start_seconds = min(begin for begin, _ in intervals) - self.begun_seconds
        return Stage(name, start_seconds, covered_seconds(intervals), self._bytes[name])
