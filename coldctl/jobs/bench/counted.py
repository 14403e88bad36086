"""The progress of a part of the job that is no phase of its own: counted, and stopped with the job."""

from __future__ import annotations

import threading
import time

from coldctl.events import Events


class Counted(Events):
    """`bytes` is what has advanced so far. A stop of the `job` is one of the part."""

    def __init__(self, job: Events) -> None:
        self.bytes = 0
        self._job = job
        self._lock = threading.Lock()

    def advance(self, nbytes: int) -> None:
        with self._lock:
            self.bytes += nbytes

    def raise_if_stopped(self) -> None:
        self._job.raise_if_stopped()


class Clocked(Counted):
    """`seconds` is the time from when the clock began to the last advance; 0 before one."""

    def __init__(self, job: Events) -> None:
        super().__init__(job)
        self._begun_seconds = self._last_seconds = 0.0

    def begin_clock(self) -> None:
        self._begun_seconds = self._last_seconds = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._last_seconds - self._begun_seconds

    def advance(self, nbytes: int) -> None:
        super().advance(nbytes)
        self._last_seconds = time.perf_counter()
