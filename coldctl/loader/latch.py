"""Waiting that interrupts cannot break: for what other threads write to, and from signal handlers too.

Python's own events, conditions and `Thread.join` are no such thing. An interrupt while a condition takes its lock back
raises RuntimeError; one during a join may have the thread pass for ended; and a signal handler that waits for what its
own thread was just looking at waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

_FOR_EVER = -1


class Latch:
    """Closed, and once `open` was called open for good. Any thread may call any method, a signal handler too: none
    holds a lock that another needs."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[threading.Lock] = []

    def open(self) -> None:
        self.is_open = True
        while self._waiting:
            with suppress(IndexError):
                self._waiting.pop().release()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether it is open, at the latest after that time."""
        longest_seconds = _FOR_EVER if timeout_seconds is None else max(0, min(timeout_seconds, threading.TIMEOUT_MAX))
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)  # before looking, so that whoever opens it afterwards wakes this
        try:
            if not self.is_open:
                mine.acquire(timeout=longest_seconds)
        finally:
            with suppress(ValueError):
                self._waiting.remove(mine)
        return self.is_open


def outlast(wait: Callable[[BaseException | None], None]) -> None:
    """Call `wait` until it returns, and raise what interrupted it first only then.

    It is given None, and what interrupted it once something has: whatever it raises counts as that.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            wait(interrupt)
            break
        except BaseException as error:  # nothing is called here: that is where the next interrupt would come through
            interrupt = interrupt or error
    try:
        if interrupt is not None:
            raise interrupt
    finally:
        del interrupt  # whose traceback has this frame
