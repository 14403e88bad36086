"""SIGINT and SIGTERM: stop between chunks, leave nothing behind, be gone within two seconds, also as process 1.

The kernel drops signals without a handler for process 1, and Python runs handlers only between two bytecodes of the
main thread, which may sit in one long system call. So the interpreter's own C handler writes the signal's number to a
pipe (`signal.set_wakeup_fd`), and a thread that waits there does the work. Where the system allows no such thread it
allows no job one either: then the main thread does what can be done without.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
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
        # In a thread of its own: a terminal that is held (Ctrl-S) must not keep a second signal from being seen.
        _daemon(self.announce, signal.Signals(number).name)

    def end(self) -> NoReturn:
        """End the process on behalf of the signal that has arrived: the main thread had its time."""
        self._exit(self._number or signal.SIGTERM)

    def _exit(self, number: int) -> NoReturn:
        if (last_acts := _daemon(self._last_acts, number)) is not None:
            last_acts.join(LAST_ACTS_SECONDS)
        else:
            _remove_temporaries()
        os._exit(128 + number)

    def _last_acts(self, number: int) -> None:
        _remove_temporaries()
        with contextlib.suppress(Exception):
            self.abandon(StoppedError(number))


def _remove_temporaries() -> None:
    # Only a job that writes has imported the module whose files there are to remove.
    atomic = sys.modules.get("coldctl.loader.atomic")
    if atomic is not None:
        with contextlib.suppress(Exception):
            atomic.remove_temporaries()


def _ignore(what: object) -> None:
    """What `announce` and `abandon` do until somebody sets them."""


def install(asked: Sequence[int] = ()) -> Stop:
    """Take over SIGINT and SIGTERM for this process. Must be called in the main thread.

    `asked` is where the handlers before these keep what they got: it counts as received now.
    """
    stop = Stop()
    # Blocked until all is in place, so that no signal is taken twice or by nobody.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    watched = _start_watcher(stop, asked)
    for number in _HANDLED:
        signal.signal(number, _leave_it_to_the_watcher if watched else lambda number, _: stop.receive(number))
    if asked and not watched:
        stop.receive(asked[0])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return stop


def _start_watcher(stop: Stop, asked: Sequence[int]) -> bool:
    """Whether the thread that acts on signals runs: a limit of threads or of open files may be in its way."""
    try:
        reading, writing = os.pipe()
    except OSError:
        return False
    os.set_blocking(writing, False)
    os.write(writing, bytes(asked))
    if _daemon(_watch, reading, stop) is None:
        os.close(reading)
        os.close(writing)
        return False
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return True


def _leave_it_to_the_watcher(number: int, frame: object) -> None:
    """A handler that does nothing, so that neither the default action nor KeyboardInterrupt happens."""


def _watch(reading: int, stop: Stop) -> None:
    while True:
        ready, _, _ = select.select([reading], [], [], GRACE_SECONDS if stop.asked else None)
        if not ready:
            stop.end()
        for number in os.read(reading, 64):
            if number in _HANDLED:
                stop.receive(number)


def _daemon(target: Callable[..., object], *arguments: object) -> threading.Thread | None:
    """A thread that runs `target`; null where the system allows no more of them."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
