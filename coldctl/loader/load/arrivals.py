"""Which tensors are there: counted down transfer by transfer, told once for each tensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from coldctl.loader.load.transfers import Transfer

Arrived = Callable[[Sequence[int]], None]
"""Takes the numbers (of the plan) of tensors whose last byte has come. Called from any thread, one call at a time."""


class Arrivals:
    """Tensors 0 to `tensors` - 1 of a plan, and what each still waits for."""

    def __init__(self, tensors: int, transfers: Sequence[Transfer]) -> None:
        self._waiting = np.zeros(tensors, dtype=np.int32)
        for each in transfers:
            self._waiting[each.first : each.end] += 1
        self._lock = threading.Lock()
        self._arrived: Arrived | None = None
        self.seconds = np.where(self._waiting > 0, np.nan, 0.0)
        """When each tensor's last byte came, on the clock of time.perf_counter. 0 for one without bytes."""

    def tell(self, arrived: Arrived) -> None:
        """Call `arrived` from now on, and now for those that are there: before any transfer, those without bytes."""
        with self._lock:
            self._arrived = arrived
            if there := np.flatnonzero(self._waiting == 0).tolist():
                arrived(there)

    def done(self, transfer: Transfer) -> None:
        """All bytes of `transfer` are there."""
        with self._lock:
            waiting = self._waiting[transfer.first : transfer.end]
            waiting -= 1
            ready = (waiting == 0).nonzero()[0]
            if len(ready):
                ready += transfer.first
                self.seconds[ready] = time.perf_counter()
                if self._arrived:
                    self._arrived(ready.tolist())
