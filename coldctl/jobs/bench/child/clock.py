"""The clock of a child of `bench`: what came before its load, the load, and what came after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from coldctl.results.load import Stage


class Clock:
    """Seconds on the wall and on the CPUs since `zero`, the first step of the load. Stages before it begin below 0."""

    def __init__(self) -> None:
        self._intervals: list[tuple[str, float, float]] = []
        self.zero()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """The block is that stage, if it succeeds."""
        begun_seconds = time.perf_counter()
        yield
        self._intervals.append((stage, begun_seconds, time.perf_counter()))

    def zero(self) -> None:
        """The load begins now."""
        self._zero_seconds, self._zero_cpu_seconds = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._zero_seconds

    @property
    def cpu_seconds(self) -> float:
        return time.process_time() - self._zero_cpu_seconds

    def stages(self, loaded_bytes: int) -> tuple[Stage, ...]:
        """What was timed, in order. Stages before the load moved nothing, and those after it all of `loaded_bytes`."""
        return tuple(
            Stage(name, begin - self._zero_seconds, end - begin, loaded_bytes if begin > self._zero_seconds else 0)
            for name, begin, end in self._intervals
        )
