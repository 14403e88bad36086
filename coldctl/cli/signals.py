"""SIGINT and SIGTERM: stop between chunks, leave nothing behind, be gone within two seconds, also as process 1.

The kernel drops signals without a handler for process 1, and Python runs handlers only between two bytecodes of the
main thread, which may sit in one long system call. So the interpreter's own C handler writes the signal's number to a
pipe (`signal.set_wakeup_fd`), and a thread that waits there does the work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from coldctl.errors import StoppedError

GRACE_SECONDS = 1.5
LAST_ACTS_SECONDS = 0.4
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the process was asked to stop, and what is done about it from outside the main thread.

    `announce` is called once, with the signal's name, when the first signal arrives; `abandon`, with the error,
    just before an exit that the main thread did not make itself. Both may be called from any thread.
    """

    def __init__(self) -> None:
        self.announce: Callable[[str], object] = _ignore
        self.abandon: Callable[[StoppedError], object] = _ignore
        self._number: int | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has arrived."""
        return self._number is not None

    def raise_if_stopped(self) -> None:
        """Raise StoppedError when a signal has arrived."""
        if self._number is not None:
            raise StoppedError(self._number)

    def receive(self, number: int) -> None:
        """The first signal asks, a second one ends the process at once."""
        if self._number is not None:
            self._exit(number)
        self._number = number
        _daemon(self._exit_after_grace, number)
        # In a thread of its own: a terminal that is held (Ctrl-S) must not keep a second signal from being seen.
        _daemon(self.announce, signal.Signals(number).name)

    def _exit_after_grace(self, number: int) -> None:
        threading.Event().wait(GRACE_SECONDS)
        self._exit(number)

    def _exit(self, number: int) -> NoReturn:
        last_acts = _daemon(self._last_acts, number)
        last_acts.join(LAST_ACTS_SECONDS)
        os._exit(128 + number)

    def _last_acts(self, number: int) -> None:
        # Only a job that writes has imported the module whose files there are to remove.
        atomic = sys.modules.get("coldctl.loader.atomic")
        if atomic is not None:
            with contextlib.suppress(Exception):
                atomic.remove_temporaries()
        with contextlib.suppress(Exception):
            self.abandon(StoppedError(number))


def _ignore(what: object) -> None:
    """What `announce` and `abandon` do until somebody sets them."""


def install() -> Stop:
    """Take over SIGINT and SIGTERM for this process. Must be called in the main thread."""
    stop = Stop()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in _HANDLED:
        signal.signal(number, _leave_it_to_the_watcher)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _daemon(_watch, reading, stop)
    return stop


def _leave_it_to_the_watcher(number: int, frame: object) -> None:
    """A handler that does nothing, so that neither the default action nor KeyboardInterrupt happens."""


def _watch(reading: int, stop: Stop) -> None:
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number in _HANDLED:
                stop.receive(number)


def _daemon(target: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
