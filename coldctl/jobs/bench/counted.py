"""The progress of a part of the job that is no phase of its own: counted, and stopped with the job."""

from __future__ import annotations

import threading

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
