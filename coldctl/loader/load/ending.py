"""Threads that go on behind the caller's back, and the end of the interpreter.

Python stops daemon threads when it ends, wherever they are; one that is in torch's C++ then takes the process down
with an abort. So they are told to stop, and waited for, while there is still an interpreter.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable

_PATIENCE_SECONDS = 10.0

_running: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_begun = threading.Event()


def _forget_in_child() -> None:
    """None of the threads exists there, one that had the lock among them."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def has_begun() -> bool:
    """Whether the interpreter ends: whatever begins now may not come to its own end."""
    return _begun.is_set()


def stopped_at_exit(thread: threading.Thread, stop: Callable[[], None]) -> threading.Thread:
    """`thread`, not begun yet: when the interpreter ends, `stop` is called and the thread waited for, ten seconds at
    most for all such threads."""
    with _lock:
        _running[thread] = stop
    return thread


@atexit.register
def _stop_all() -> None:
    _begun.set()
    until_seconds = time.monotonic() + _PATIENCE_SECONDS
    with _lock:
        running = [(thread, stop) for thread, stop in _running.items() if thread.is_alive()]
    for _, stop in running:
        stop()
    for thread, _ in running:
        thread.join(max(until_seconds - time.monotonic(), 0))
