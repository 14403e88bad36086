"""Loading into device memory straight out of the page cache: windows on the files, registered for the device to read.

No copy on the host, at the price of locking every page of a window; it pays on tmpfs, and where the bus is slower than
the driver is at locking pages. The mappings are read-only: a private writable one would have every page copied.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from coldctl.errors import ColdctlError, UnreadableError
from coldctl.events import Events
from coldctl.loader.device.copies import AttentionMarks, Copies
from coldctl.loader.device.flights import Flight, Flights
from coldctl.loader.device.protocol import Bytes, Device, Registration
from coldctl.loader.device.ring_engine import copy_plainly
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.source import OpenLocalFile
from coldctl.loader.syscalls import map_read_only, populate_read, read_ahead_in_large_pieces, unmap
from coldctl.units import MIB

CHUNK_BYTES = 64 * MIB
_WINDOWS = 4


class MappedEngine:
    """Up to four windows of 64 MiB at once. Gathered tensors go through ordinary memory.

    `unmapped_bytes` did too, because they could not be mapped.
    """

    def __init__(self, device: Device, routes: Routes, events: Events, *, deadline_seconds: float) -> None:
        self.reads = Reads()
        self.unmapped_bytes = 0
        self._batch = NOTHING
        self._written: list[Bytes] = []  # the arena lives on while a copy may be writing to it
        self._device = device
        self._routes = routes
        self._events = events
        self._stream = device.stream()
        self.marks = AttentionMarks()
        self.copies = Copies(self._stream.record(), 1)
        self._windows = [_Window() for _ in range(_WINDOWS)]
        self._flights: Flights[_Window] = Flights(
            self._windows, deadline_seconds=deadline_seconds, sent=self._sent, landed=self._landed, events=events
        )

    def run(self, batch: Batch) -> None:
        """Bring all transfers into the arena. Returns when the last copy is over."""
        self._batch = batch
        self._written[:] = [batch.arena]
        self.marks.expect(batch)
        read_all(batch, self._move, self._routes, self.reads, self._events)
        self._flights.await_all()
        self._written.clear()

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        if transfer.gather:
            self._move_plainly(filler, transfer)
            return
        window = self._flights.acquire()
        try:
            window.close()
            file = filler.local(transfer)
            mapped = window.map(file, transfer)
            if mapped:
                window.open(self._device, file, transfer)
                filler.read_bytes += transfer.nbytes
        except BaseException:
            self._flights.release(window)
            raise
        if not mapped:
            self._flights.release(window)
            self.unmapped_bytes += transfer.nbytes
            self._move_plainly(filler, transfer)
            return
        try:
            self._flights.send(window, self._copies(window, transfer), transfer, self._stream, 0)
        except ColdctlError as error:
            error.locate(stage="h2d", file=transfer.source.name, tensor=transfer.name)
            raise

    def _move_plainly(self, filler: Filler, transfer: Transfer) -> None:
        copy_plainly(self._device, self._batch.arena, filler, transfer)
        self.copies.plain_bytes += transfer.nbytes
        self._batch.arrivals.done(transfer)

    def _copies(self, window: _Window, transfer: Transfer) -> Iterable[tuple[Bytes, Bytes]]:
        from_bytes = 0
        for at_bytes, nbytes in transfer.pieces:
            to = self._batch.arena[transfer.at_bytes + at_bytes : transfer.at_bytes + at_bytes + nbytes]
            yield to, window.tensor(from_bytes, nbytes)
            from_bytes += nbytes

    def _sent(self, flight: Flight) -> None:
        self.marks.sent(flight, self._stream)

    def _landed(self, flight: Flight) -> None:
        self.copies.landed(flight)
        self._batch.arrivals.done(flight.transfer)

    def close(self) -> None:
        """Give the windows back, after the copies under way."""
        self._batch = NOTHING
        windows, written = self._windows, self._written

        def give_back() -> None:
            for window in windows:
                window.close()
            written.clear()

        self._flights.close(give_back)


class _Window:
    """A mapped and registered part of a file, or nothing."""

    def __init__(self) -> None:
        self._address = 0
        self._nbytes = 0
        self._skipped_bytes = 0
        self._registration: Registration | None = None

    def map(self, file: OpenLocalFile, transfer: Transfer) -> bool:
        """Map the transfer's range. False where the process has no room for that: then it is to be read instead."""
        self._skipped_bytes = transfer.offset_bytes % PAGE_BYTES
        self._nbytes = self._skipped_bytes + transfer.nbytes
        try:
            self._address = map_read_only(file.fd, transfer.offset_bytes - self._skipped_bytes, self._nbytes)
        except OSError as cause:
            if cause.errno == errno.ENOMEM:
                return False
            raise _unreadable(transfer, cause) from cause
        return True

    def open(self, device: Device, file: OpenLocalFile, transfer: Transfer) -> None:
        """Have all pages of the range read, and register them."""
        read_ahead_in_large_pieces(self._address, self._nbytes)
        try:
            _populate(self._address, self._nbytes)
        except OSError as cause:
            file.check_unchanged()  # the kernel says the same of bad blocks and of what a file has lost
            raise _unreadable(transfer, cause) from cause
        try:
            self._registration = device.register(self._address, self._nbytes)
        except ColdctlError as error:
            error.locate(stage="pin", file=transfer.source.name, tensor=transfer.name)
            raise

    def tensor(self, from_bytes: int, nbytes: int) -> Bytes:
        if self._registration is None:
            raise ValueError("the window is closed")
        return self._registration.tensor[self._skipped_bytes + from_bytes :][:nbytes]

    def close(self) -> None:
        """Unregister before unmapping: the driver must not hold pages of a mapping that is gone."""
        if self._registration:
            self._registration.close()
        if self._address:
            unmap(self._address, self._nbytes)
        self._address, self._registration = 0, None


def _unreadable(transfer: Transfer, cause: OSError) -> UnreadableError:
    message = f"cannot map and read {transfer.nbytes} bytes of {transfer.source.name}: {cause.strerror}"
    error = UnreadableError(message, file=transfer.source.name, offset_bytes=transfer.offset_bytes)
    error.locate(stage="read", tensor=transfer.name)
    return error


def _populate(address: int, nbytes: int) -> None:
    try:
        populate_read(address, nbytes)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 5.14: registering reads the pages as well
            raise
