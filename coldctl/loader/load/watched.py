"""The events of a load that somebody may cancel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coldctl.errors import CancelledError
from coldctl.events import Events


class _Inside(threading.local):
    """How many such calls the thread that looks is in."""

    calls = 0


class Watched(Events):
    """Passes events on, and stops the load when it is cancelled.

    It knows which threads are in the middle of something that the caller gave to the load: the load waits for them, so
    they cannot wait for the load.
    """

    def __init__(self, inner: Events) -> None:
        self._inner = inner
        self._inside = _Inside()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    @staticmethod
    def cancellation() -> CancelledError:
        return CancelledError("the load was cancelled")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block calls what the caller gave to the load."""
        outside = self._inside.calls
        try:
            self._inside.calls = outside + 1
            yield
        finally:
            self._inside.calls = outside

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is in such a call."""
        return self._inside.calls > 0

    def begin(self, label: str, total_bytes: int) -> None:
        with self.entered():
            self._inner.begin(label, total_bytes)

    def advance(self, nbytes: int) -> None:
        with self.entered():
            self._inner.advance(nbytes)

    def end(self) -> None:
        with self.entered():
            self._inner.end()

    def note(self, message: str) -> None:
        with self.entered():
            self._inner.note(message)

    def raise_if_stopped(self) -> None:
        if self.cancelled:
            raise self.cancellation()
        with self.entered():
            self._inner.raise_if_stopped()
