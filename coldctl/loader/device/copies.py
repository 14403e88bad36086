"""What the copies of a load did, on the device's own clock, and whether the bus is as fast as it was measured to be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from coldctl.loader.device.flights import Flight
from coldctl.loader.device.protocol import Event, Stream
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.clock import Interval, covered_seconds, overlap_share
from coldctl.loader.load.transfers import Transfer
from coldctl.units import format_rate

_PATIENCE_CHUNKS = 16


class Copies:
    """Every copy as an interval of device time since one base event, lane by lane.

    `begun_seconds` is the base event on the clock of time.perf_counter, as near as its recording tells. `plain_bytes`
    were copied without a stream, and have no interval.
    """

    def __init__(self, base: Event, lanes: int) -> None:
        self.begun_seconds = time.perf_counter()
        self.bytes = 0
        self.plain_bytes = 0
        self.lanes = lanes
        self._base = base
        self._intervals: list[list[Interval]] = [[] for _ in range(lanes)]

    def landed(self, flight: Flight) -> Interval:
        """Count a copy that is over."""
        interval = flight.begin.seconds_since(self._base), flight.end.seconds_since(self._base)
        self._intervals[flight.lane].append(interval)
        self.bytes += flight.transfer.nbytes
        return interval

    def since_base(self, event: Event) -> float:
        return event.seconds_since(self._base)

    @property
    def seconds(self) -> float:
        """How long any copy was under way: the union of the intervals, never their sum."""
        return covered_seconds(self.intervals)

    @property
    def intervals(self) -> Iterable[Interval]:
        return (interval for lane in self._intervals for interval in lane)

    @property
    def overlap_share(self) -> float:
        return overlap_share(self._intervals)


class Bus:
    """Watches the rate of single copies against what the same bus gave when it was calibrated.

    `complaint` is None, or says that so many chunks in a row stayed under `threshold` of the calibrated rate.
    """

    def __init__(self, calibrated_bytes_per_second: float, threshold: float, chunk_bytes: int) -> None:
        self.calibrated_bytes_per_second = calibrated_bytes_per_second
        self.complaint: str | None = None
        self._least_bytes_per_second = threshold * calibrated_bytes_per_second
        self._chunk_bytes = chunk_bytes
        self._slow_bytes = 0
        self._slow_seconds = 0.0
        self._slow_chunks = 0

    def watch(self, nbytes: int, interval: Interval) -> None:
        """Judge one copy. Small ones tell nothing about the bus."""
        seconds = interval[1] - interval[0]
        if self.complaint or 2 * nbytes < self._chunk_bytes or seconds <= 0:
            return
        if nbytes / seconds >= self._least_bytes_per_second:
            self._slow_bytes = self._slow_chunks = 0
            self._slow_seconds = 0.0
            return
        self._slow_bytes += nbytes
        self._slow_seconds += seconds
        self._slow_chunks += 1
        if self._slow_chunks == _PATIENCE_CHUNKS:
            found = format_rate(self._slow_bytes / self._slow_seconds)
            wanted = format_rate(self._least_bytes_per_second)
            self.complaint = (
                f"the bus gave {found} over {_PATIENCE_CHUNKS} chunks, under the threshold of {wanted} "
                f"(calibrated: {format_rate(self.calibrated_bytes_per_second)}): plain copies for the rest"
            )


class AttentionMarks:
    """An event for each layer, after the copy of the last byte of its attention block: `ready`.

    Not locked: callers take turns.
    """

    def __init__(self) -> None:
        self.ready: dict[int, Event] = {}
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
                self.ready[layer] = joining.record()

    def _layers(self, transfer: Transfer) -> set[int]:
        if not self._layer_of:
            return set()
        return {self._layer_of[n] for n in range(transfer.first, transfer.end) if n in self._layer_of}
