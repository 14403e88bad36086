"""The Events of the command line: counts what jobs report, and draws it now and then."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from coldctl.cli.log import Log
from coldctl.cli.settings import Settings
from coldctl.cli.signals import Stop
from coldctl.events import Events
from coldctl.units import format_countdown, format_duration, format_rate, format_share, format_size


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A phase at one moment. `bytes_per_second` is the rate of late; of the whole phase once that is `over`."""

    label: str
    done_bytes: int
    total_bytes: int
    seconds: float
    bytes_per_second: float
    over: bool

    def sentence(self) -> str:
        """`reading 3.1 GiB of 15.0 GiB (20 %), 1.84 GB/s, 6 s left`."""
        amount = f"{format_size(self.done_bytes)} of {format_size(self.total_bytes)}"
        share = format_share(min(self.done_bytes, self.total_bytes), self.total_bytes)
        return f"{self.label} {amount} ({share}), {format_rate(self.bytes_per_second)}, {self._time()}"

    def _time(self) -> str:
        if self.over:
            return format_duration(self.seconds)
        if self.bytes_per_second <= 0:
            return "stalled"
        left_seconds = max(0, self.total_bytes - self.done_bytes) / self.bytes_per_second
        return f"{format_countdown(left_seconds)} left"


class Display(Protocol):
    """How snapshots are shown; `interval_seconds` says how often."""

    interval_seconds: float

    def draw(self, snapshot: Snapshot) -> None:
        """Show `snapshot`; the last one of a phase is `over`."""


class Lines:
    """Plain lines on stderr, for logs."""

    def __init__(self, log: Log, command: str, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._log = log
        self._command = command

    def draw(self, snapshot: Snapshot) -> None:
        fields = {
            "label": snapshot.label,
            "done_bytes": snapshot.done_bytes,
            "total_bytes": snapshot.total_bytes,
            "seconds": snapshot.seconds,
            "bytes_per_second": snapshot.bytes_per_second,
            "over": snapshot.over,
        }
        self._log.progress(f"{self._command}: {snapshot.sentence()}", fields)


class Progress(Events):
    """Events that are counted at once and drawn by a thread of their own, so that jobs never wait for a terminal."""

    def __init__(self, log: Log, stop: Stop, display: Display | None) -> None:
        self._log = log
        self._stop = stop
        self._display = display
        self._phase: _Phase | None = None

    def begin(self, label: str, total_bytes: int) -> None:
        self.end()
        if self._display is not None:
            self._phase = _Phase(label, total_bytes, self._display)

    def advance(self, nbytes: int) -> None:
        if (phase := self._phase) is not None:
            phase.advance(nbytes)

    def end(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.end()

    def note(self, message: str) -> None:
        self._log.note(message)

    def raise_if_stopped(self) -> None:
        self._stop.raise_if_stopped()


class _Phase:
    """The counter of one phase and the thread that draws it."""

    # Long enough to smooth over one slow chunk, short enough to see a stall.
    _WINDOW_SECONDS = 3.0

    def __init__(
        self, label: str, total_bytes: int, display: Display, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._display = display
        self._clock = clock
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._start = clock()
        self._samples = deque([(self._start, 0)])
        self._over = threading.Event()
        self._thread = self._start_thread()

    def advance(self, nbytes: int) -> None:
        with self._lock:
            self._done_bytes += nbytes

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._display.draw(self._last_snapshot())

    def _start_thread(self) -> threading.Thread | None:
        """Null where the system allows no more threads: then only the end of the phase is drawn."""
        thread = threading.Thread(target=self._draw_now_and_then, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _draw_now_and_then(self) -> None:
        while not self._over.wait(self._display.interval_seconds):
            self._display.draw(self._snapshot())

    def _snapshot(self) -> Snapshot:
        now, done_bytes = self._clock(), self._done_bytes
        while len(self._samples) > 1 and now - self._samples[1][0] >= self._WINDOW_SECONDS:
            self._samples.popleft()
        then, then_bytes = self._samples[0]
        self._samples.append((now, done_bytes))
        rate = (done_bytes - then_bytes) / (now - then) if now > then else 0.0
        return Snapshot(self._label, done_bytes, self._total_bytes, now - self._start, rate, over=False)

    def _last_snapshot(self) -> Snapshot:
        seconds = self._clock() - self._start
        rate = self._done_bytes / seconds if seconds > 0 else 0.0
        return Snapshot(self._label, self._done_bytes, self._total_bytes, seconds, rate, over=True)


def display_for(log: Log, command: str, settings: Settings, *, quiet: bool, on_terminal: bool) -> Display | None:
    """The display that suits stderr: none when quiet, a bar on a terminal, else plain lines."""
    if quiet:
        return None
    if on_terminal and not settings.log_json:
        from coldctl.cli.bar import Bar

        return Bar(log)
    return Lines(log, command, settings.progress_seconds)
