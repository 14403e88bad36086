"""Making many objects that stay, without Python's cycle collector walking all of them again and again."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_on = False


def _go_on_in_child() -> None:
    """The thread that paused it does not exist there."""
    global _lock, _pauses
    _lock = threading.Lock()
    if _pauses and _was_on:
        gc.enable()
    _pauses = 0


os.register_at_fork(after_in_child=_go_on_in_child)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles while the block runs: it would take half of the time that 90,000 tensors take.

    Counted over all threads, and back as it was when the last block is left. Nothing but cycles waits for it.
    """
    global _pauses, _was_on
    with _lock:
        if _pauses == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()
