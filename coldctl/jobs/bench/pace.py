"""How far the loads of a benchmark are, told at each round and every ten seconds in between.

In loads and not in bytes: most of a run is no load, but a process that starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from coldctl.events import Events
from coldctl.units import format_countdown

INTERVAL_SECONDS = 10.0


class Pace:
    def __init__(
        self, rounds: int, loads_a_round: int, events: Events, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds = rounds
        self._loads_a_round = loads_a_round
        self._events = events
        self._clock = clock
        self._begun_seconds = self._told_seconds = clock()
        self._done = 0

    def round(self, number: int) -> None:
        """Round `number` begins, from 0."""
        self._tell(f"round {number + 1} of {self._rounds}")

    def load(self) -> None:
        """One more load is over."""
        self._done += 1
        if self._done % self._loads_a_round and self._clock() - self._told_seconds >= INTERVAL_SECONDS:
            self._tell(f"load {self._done + 1} of {self._rounds * self._loads_a_round}")

    def _tell(self, what: str) -> None:
        self._told_seconds = self._clock()
        left = ""
        if self._done:
            each_seconds = (self._told_seconds - self._begun_seconds) / self._done
            left_seconds = each_seconds * (self._rounds * self._loads_a_round - self._done)
            left = f", about {format_countdown(left_seconds)} left"
        self._events.note(what + left)
