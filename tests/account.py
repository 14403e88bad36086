"""Bytes that were taken and given back, for tests of whether all memory comes back."""

from __future__ import annotations

import threading
from collections import deque


class Account:
    """Bytes of one kind: how many there are, and how many there were at most."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._now_bytes = 0
        self._given_back: deque[int] = deque()  # a finalizer may run inside any line: it appends, and takes no lock
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        with self._lock:
            self._settle()
            self._now_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self._now_bytes)

    def give_back(self, nbytes: int) -> None:
        self._given_back.append(nbytes)

    @property
    def now_bytes(self) -> int:
        with self._lock:
            self._settle()
            return self._now_bytes

    def _settle(self) -> None:
        while self._given_back:
            self._now_bytes -= self._given_back.popleft()
