"""Copies under way, each guarded by an event: what it copies from is handed out again only when that event is done."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, NamedTuple, TypeVar

from coldctl.errors import ColdctlError, DeviceError, EnvironmentLacksError
from coldctl.events import Events
from coldctl.loader.device.protocol import Bytes, Event, Stream
from coldctl.loader.load.ending import has_begun, stopped_at_exit
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.pool import start
from coldctl.units import format_duration

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 20e-6, 1e-3
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 1.0

Held = TypeVar("Held")
"""What the source of a copy is: a slot of the ring, a window on a file."""


class Flight(NamedTuple):
    """A copy under way: of what, on which lane, and between which two events."""

    transfer: Transfer
    lane: int
    begin: Event
    end: Event


class Mark(NamedTuple):
    """An event that is recorded behind some copies, and the last transfer of them."""

    event: Event
    last: Transfer


class Flights(Generic[Held]):
    """`free` are handed out, sent, and handed out again when their copy is over.

    Any thread may call `acquire`, `release` and `send`; `await_all` one, when those have ended. `sent` is called for
    each copy that was begun and `landed` for each that is over, from any thread, each by one at a time. A copy that is
    not over `deadline_seconds` after somebody began to wait for it raises DeviceError. After any failure nothing is
    handed out any more: whoever waits gets that failure, too.
    """

    def __init__(
        self,
        free: Iterable[Held],
        streams: Sequence[Stream],
        *,
        deadline_seconds: float,
        sent: Callable[[Flight], None],
        landed: Callable[[Flight], None],
        events: Events,
    ) -> None:
        self._streams = streams
        self._deadline_seconds = deadline_seconds
        self._sent = sent
        self._landed = landed
        self._landing = threading.Lock()
        self._events = events
        self._changed = threading.Condition()
        self._free = deque(free)
        self._flying: deque[tuple[Flight, Held]] = deque()
        self._failure: BaseException | None = None

    def acquire(self) -> Held:
        """One that no copy needs any more; waits for the oldest copy when there is none."""
        while True:
            with self._changed:
                if self._failure:
                    raise self._failure
                if self._free:
                    return self._free.popleft()
                if not self._flying:  # other threads fill, or wait for, every one
                    self._changed.wait(_LOOK_SECONDS)
                    self._events.raise_if_stopped()
                    continue
                flight, held = self._flying.popleft()
            self._land(flight)
            return held

    def release(self, held: Held) -> None:
        """Give back one that no copy needs."""
        with self._changed:
            self._free.append(held)
            self._changed.notify()

    def send(self, held: Held, copies: Iterable[tuple[Bytes, Bytes]], transfer: Transfer, lane: int) -> None:
        """Begin to copy each (to, source), all from `held`, on the stream of `lane`. Raises what the stream does, with
        its place."""
        stream = self._streams[lane]
        with self._failing(transfer), self._changed:
            begin = stream.record()
            for to, source in copies:
                stream.copy(to, source)
            flight = Flight(transfer, lane, begin, stream.record())
            self._flying.append((flight, held))
            self._sent(flight)
            self._changed.notify()

    def await_all(self, marks: Iterable[Mark] = ()) -> None:
        """Wait for every copy under way, and for `marks`."""
        while True:
            with self._changed:
                if not self._flying:
                    break
                flight, held = self._flying.popleft()
            self._land(flight)
            self.release(held)
        for mark in marks:
            with self._failing(mark.last):
                self.await_event(mark.event)

    def await_event(self, end: Event) -> None:
        """Wait for `end`, no longer than the deadline."""
        until_seconds = time.monotonic() + self._deadline_seconds
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not end.done():
            self._events.raise_if_stopped()
            if self._failure:
                raise self._failure
            if time.monotonic() > until_seconds:
                raise DeviceError(f"a copy to the device did not end within {format_duration(self._deadline_seconds)}")
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _land(self, flight: Flight) -> None:
        with self._failing(flight.transfer):
            self.await_event(flight.end)
            with self._landing:
                self._landed(flight)

    @contextmanager
    def _failing(self, transfer: Transfer) -> Iterator[None]:
        """Whatever is raised in the block ends the flights; what the device raised, with its place."""
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            if isinstance(error, ColdctlError):
                error.locate(stage="h2d", file=transfer.source.name, tensor=transfer.name)
            raise

    def close(self, give_back: Callable[[], None]) -> None:
        """Call `give_back`, which frees the memory of all copies, when all that the streams were given is over.

        Where that takes over a second this returns, and a thread goes on waiting for it: nothing is given back under a
        running copy, and nothing is lost once it ends. The end of the interpreter waits for neither.
        """
        self._failure = None  # its traceback would hold what is to be given back
        ends = [end for stream in self._streams if (end := _mark(stream))]
        self._free.clear()
        self._flying.clear()
        if _all_over_within(ends, _GRACE_SECONDS):
            give_back()
            return

        _give_back_later(ends, give_back)


_in_use: set[Callable[[], None]] = set()
"""What gives memory back that a copy may still use, and keeps it until then. At the end of the process the kernel does
it for what is left."""


def _give_back_later(ends: Sequence[Event], give_back: Callable[[], None]) -> None:
    _in_use.add(give_back)
    ending = threading.Event()

    def wait_and_give_back() -> None:
        if _all_over_within(ends, math.inf, unless=ending):
            _in_use.remove(give_back)
            give_back()

    thread = threading.Thread(target=wait_and_give_back, name="coldctl-give-back", daemon=True)
    if not has_begun():
        with suppress(EnvironmentLacksError):
            start(stopped_at_exit(thread, ending.set))


def _mark(stream: Stream) -> Event | None:
    """The end of all that the stream was given; None on a device that failed, which copies nothing any more."""
    try:
        return stream.record()
    except DeviceError:
        return None


def _all_over_within(ends: Sequence[Event], seconds: float, *, unless: threading.Event | None = None) -> bool:
    until_seconds = time.monotonic() + seconds
    while not all(_is_over(end) for end in ends):
        if time.monotonic() > until_seconds or (unless and unless.is_set()):
            return False
        time.sleep(_LONGEST_PAUSE_SECONDS)
    return True


def _is_over(end: Event) -> bool:
    try:
        return end.done()
    except DeviceError:  # as above
        return True
