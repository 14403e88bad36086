"""Loading into device memory through the ring: threads read into pinned slots, streams copy them into the arena."""

from __future__ import annotations

import time

from coldctl.errors import ColdctlError
from coldctl.events import Events
from coldctl.loader.device.copies import AttentionMarks, Bus, Copies, PlainCopies
from coldctl.loader.device.flights import Flight, Flights
from coldctl.loader.device.protocol import Bytes, Device
from coldctl.loader.device.ring import Ring, Slot
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.clock import Timed
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.route import Routes
from coldctl.loader.load.staging import staging
from coldctl.loader.load.transfers import Transfer

_CALIBRATION_COPIES = 16


class RingEngine:
    """One device's ring and its streams, `lanes` of them.

    With `bus_threshold` the bus is calibrated first, and when single copies stay under that share of it for 16 chunks,
    all that follows is copied plainly (`bus.complaint` says so).
    """

    def __init__(
        self,
        device: Device,
        routes: Routes,
        events: Events,
        *,
        slot_bytes: int,
        slots: int,
        deadline_seconds: float,
        lanes: int,
        bus_threshold: float | None,
    ) -> None:
        self.reads = Reads()
        self.plain = PlainCopies()
        self.marks = AttentionMarks()
        self.bus: Bus | None = None
        self._batch = NOTHING
        self._device = device
        self._routes = routes
        self._events = events
        self._streams = [device.stream() for _ in range(lanes)]
        self.ring = Ring(device, slot_bytes, slots)
        self._flights: Flights[Slot] = Flights(
            self.ring,
            self._streams,
            deadline_seconds=deadline_seconds,
            sent=self._sent,
            landed=self._landed,
            events=events,
        )
        try:
            if bus_threshold is not None and (rate := self._calibrate()):
                self.bus = Bus(rate, bus_threshold, self.chunk_bytes)
            self.copies = Copies(self._streams[0].record(), lanes)
        except BaseException:
            self.close()
            raise

    def _calibrate(self) -> float:
        """The rate of the bus in bytes a second, measured with slots that hold nothing yet."""
        stream, scratch = self._streams[0], self._scratch()
        slots = [self._flights.acquire() for _ in range(min(self.ring.slots, _CALIBRATION_COPIES))]
        stream.copy(scratch, slots[0].tensor)  # the first copy of a stream takes longer
        begin = stream.record()
        for slot in slots[1:]:
            stream.copy(scratch, slot.tensor)
        end = stream.record()
        self._flights.await_event(end)
        for slot in slots:
            self._flights.release(slot)
        seconds = end.seconds_since(begin)
        return (len(slots) - 1) * self.ring.slot_bytes / seconds if seconds > 0 else 0.0

    def _scratch(self) -> Bytes:
        try:
            return self._device.allocate(self.ring.slot_bytes)
        except ColdctlError as error:
            error.locate(stage="allocate")
            raise

    @property
    def chunk_bytes(self) -> int:
        """The most that one transfer may span: a slot, less what it may take to begin at the file's place in a page."""
        return self.ring.slot_bytes - PAGE_BYTES

    def run(self, batch: Batch) -> None:
        """Bring all transfers into the arena. Returns when the last copy is over."""
        self._batch = batch
        self.marks.expect(batch)
        read_all(batch, self._move, self._routes, self.reads, self._events)
        self._flights.await_all(self.marks.ready.values())

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        if self.bus and self.bus.complaint:
            copy_plainly(self._device, self._batch.arena, filler, transfer, self.plain)
            self._batch.arrivals.done(transfer)
            return
        slot = self._flights.acquire()
        from_bytes = transfer.offset_bytes % PAGE_BYTES
        try:
            filler.fill(transfer, slot.buffer[from_bytes : from_bytes + transfer.span_bytes])
        except BaseException:
            self._flights.release(slot)
            raise
        to = self._batch.arena[transfer.at_bytes : transfer.at_bytes + transfer.span_bytes]
        source = slot.tensor[from_bytes : from_bytes + transfer.span_bytes]
        lane = self._batch.lanes[transfer.first] if self._batch.lanes else 0
        self._flights.send(slot, [(to, source)], transfer, lane)

    def _sent(self, flight: Flight) -> None:
        self.marks.sent(flight, self._streams[-1])

    def _landed(self, flight: Flight) -> None:
        interval = self.copies.landed(flight)
        if self.bus:
            self.bus.watch(flight.transfer.nbytes, interval)
        self._batch.arrivals.done(flight.transfer)

    def close(self) -> None:
        """Give the pinned memory back, after the copies under way."""
        self._batch = NOTHING
        self._flights.close(self.ring.close)


def copy_plainly(device: Device, arena: Bytes, filler: Filler, transfer: Transfer, copies: PlainCopies) -> None:
    """Read into ordinary memory, copy it out of there, and wait for it."""
    import torch

    staged = staging(transfer.span_bytes, transfer)
    filler.fill(transfer, staged.data, moved="plain")
    begun_seconds = time.perf_counter()
    try:
        device.copy_plainly(
            arena[transfer.at_bytes : transfer.at_bytes + transfer.span_bytes], torch.from_numpy(staged)
        )
    except ColdctlError as error:
        error.locate(stage="h2d", file=transfer.source.name, tensor=transfer.name)
        raise
    copies.add(Timed(begun_seconds, time.perf_counter(), transfer.nbytes, transfer.name))
