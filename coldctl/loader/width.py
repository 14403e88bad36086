"""How many threads work is shared out to, found by feedback instead of guessed."""

from __future__ import annotations

_TRIAL_SECONDS = 0.05
_TRIAL_PIECES = 8
_STEP = 1.1


class Width:
    """How many threads there should be, from the bytes they report. Not locked: the pool does that.

    A width is tried for 50 ms and at least eight pieces a thread. One more thread is kept when it brings a tenth
    more throughput than there was without it; when it does not, it is taken away and not tried again.
    """

    def __init__(self, first: int, cap: int) -> None:
        self.target = min(first, cap)
        self._cap = cap
        self._rates: dict[int, float] = {}
        self._since_seconds: float | None = None
        self._bytes = 0
        self._pieces = 0

    def record(self, nbytes: int, now_seconds: float) -> bool:
        """Count `nbytes`, done by `now_seconds`. True when `target` changed."""
        if self._since_seconds is None:
            self._since_seconds = now_seconds
            return False
        self._bytes += nbytes
        self._pieces += 1
        elapsed_seconds = now_seconds - self._since_seconds
        if elapsed_seconds < _TRIAL_SECONDS or self._pieces < _TRIAL_PIECES * self.target:
            return False
        self._rates[self.target] = self._bytes / elapsed_seconds
        self._since_seconds, self._bytes, self._pieces = now_seconds, 0, 0
        before, self.target = self.target, self._better()
        return self.target != before

    def _better(self) -> int:
        rate, narrower, wider = self._rates[self.target], self.target - 1, self.target + 1
        if rate < self._rates.get(narrower, 0.0) * _STEP:
            self._cap = narrower
            return narrower
        return min(wider, self._cap)
