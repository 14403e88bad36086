"""What the copies of a load did, on the device's own clock, and whether the bus is as fast as it was measured to be."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from coldctl.loader.device.flights import Flight, Mark
from coldctl.loader.device.protocol import Event, Stream
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.clock import Interval, Timed, covered_seconds, overlap_share
from coldctl.loader.load.transfers import Transfer
from coldctl.units import format_rate

_PATIENCE_CHUNKS = 16


class Copies:
    """Every copy in device time since one base event, lane by lane.

    `begun_seconds` is the base event on the clock of time.perf_counter, as near as its recording tells.
    """

    def __init__(self, base: Event, lanes: int) -> None:
        self.begun_seconds = time.perf_counter()
        self.bytes = 0
        self.lanes = lanes
        self._base = base
        self.by_lane: list[list[Timed]] = [[] for _ in range(lanes)]

    def landed(self, flight: Flight) -> Interval:
        """Count a copy that is over."""
        begin_seconds, end_seconds = flight.begin.seconds_since(self._base), flight.end.seconds_since(self._base)
        copy = Timed(begin_seconds, end_seconds, flight.transfer.nbytes, flight.transfer.name)
        self.by_lane[flight.lane].append(copy)
        self.bytes += copy.nbytes
        return copy.interval

    def since_base(self, event: Event) -> float:
        return event.seconds_since(self._base)

    @property
    def seconds(self) -> float:
        """How long any copy was under way: the union of the intervals, never their sum."""
        return covered_seconds(self.intervals)

    @property
    def intervals(self) -> Iterable[Interval]:
        return (copy.interval for lane in self.by_lane for copy in lane)

    @property
    def overlap_share(self) -> float:
        return overlap_share([copy.interval for copy in lane] for lane in self.by_lane)


class PlainCopies:
    """What was copied without a stream, on the clock of time.perf_counter. Any thread may add."""

    def __init__(self) -> None:
        self.bytes = 0
        self.done: list[Timed] = []
        self._lock = threading.Lock()

    def add(self, copy: Timed) -> None:
        with self._lock:
            self.bytes += copy.nbytes
            self.done.append(copy)


class Bus:
    """Watches the rate of copies against what the same bus gave when it was calibrated.

    `complaint` is None, or says that so many chunks in a row stayed under `threshold` of the calibrated rate: each of
    them, and all of them together. With several lanes a copy's own time includes waiting for the other lanes.
    """

    def __init__(self, calibrated_bytes_per_second: float, threshold: float, chunk_bytes: int) -> None:
        self.calibrated_bytes_per_second = calibrated_bytes_per_second
        self.complaint: str | None = None
        self._least_bytes_per_second = threshold * calibrated_bytes_per_second
        self._chunk_bytes = chunk_bytes
        self._slow: list[tuple[int, Interval]] = []

    def watch(self, nbytes: int, interval: Interval) -> None:
        """Judge one copy. Small ones tell nothing about the bus."""
        if self.complaint or 2 * nbytes < self._chunk_bytes:
            return
        if _rate([(nbytes, interval)]) >= self._least_bytes_per_second:
            self._slow.clear()
            return
        self._slow = [*self._slow[1 - _PATIENCE_CHUNKS :], (nbytes, interval)]
        together = _rate(self._slow)
        if len(self._slow) == _PATIENCE_CHUNKS and together < self._least_bytes_per_second:
            self.complaint = (
                f"the bus gave {format_rate(together)} over {_PATIENCE_CHUNKS} chunks, under the threshold of "
                f"{format_rate(self._least_bytes_per_second)} (calibrated: "
                f"{format_rate(self.calibrated_bytes_per_second)}): plain copies for the rest"
            )


def _rate(copies: Sequence[tuple[int, Interval]]) -> float:
    seconds = covered_seconds(interval for _, interval in copies)
    return sum(nbytes for nbytes, _ in copies) / seconds if seconds else math.inf


class AttentionMarks:
    """A mark for each layer, after the copy of the last byte of its attention block: `ready`.

    Not locked: callers take turns.
    """

    def __init__(self) -> None:
        self.ready: dict[int, Mark] = {}
        self._layer_of: Mapping[int, int] = {}
        self._waiting: Counter[int] = Counter()
        self._ends: dict[int, dict[int, Event]] = {}

    def expect(self, batch: Batch) -> None:
        """The transfers of this batch are to come."""
        self._layer_of = batch.layer_of
        for transfer in batch.transfers:
            self._waiting.update(self._layers(transfer))

    def sent(self, flight: Flight, joining: Stream) -> None:
        """A copy was begun. When it is the last of a layer, `joining` waits for the other lanes and is marked."""
        for layer in self._layers(flight.transfer):
            self._ends.setdefault(layer, {})[flight.lane] = flight.end
            self._waiting[layer] -= 1
            if self._waiting[layer] == 0:
                for event in self._ends.pop(layer).values():
                    joining.wait(event)
                self.ready[layer] = Mark(joining.record(), flight.transfer)

    def _layers(self, transfer: Transfer) -> set[int]:
        if not self._layer_of:
            return set()
        return {self._layer_of[n] for n in range(transfer.first, transfer.end) if n in self._layer_of}
