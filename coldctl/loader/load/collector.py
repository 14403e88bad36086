"""Making many objects that stay, without Python's cycle collector walking all of them again and again."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet


class _Pause:
    """A block that is under way. It goes with its frame, where an interrupt kept the block from ending it."""

    def begin(self) -> None:
        _pauses.add(self)
        _settle()

    def end(self) -> None:
        _pauses.discard(self)
        _settle()

    __del__ = end


_lock = threading.RLock()
_pauses: WeakSet[_Pause] = WeakSet()
_to_enable = False
"""Whether it was on before. Set before the collector is turned off, and taken back after it is on again: an interrupt
in between leaves it on."""


def _settle() -> None:
    global _to_enable
    with _lock:
        if _pauses:
            if gc.isenabled():
                _to_enable = True
                gc.disable()
        elif _to_enable:
            gc.enable()
            _to_enable = False


def _go_on_in_child() -> None:
    """The thread that paused it does not exist there."""
    global _lock
    _lock = threading.RLock()
    _pauses.clear()
    _settle()


os.register_at_fork(after_in_child=_go_on_in_child)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles while the block runs: it would take half of the time that 90,000 tensors take.

    Counted over all threads, and back as it was when the last block is left. Nothing but cycles waits for it.
    """
    pause = _Pause()
    try:
        pause.begin()
        yield
    finally:
        pause.end()
