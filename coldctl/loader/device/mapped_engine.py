"""Loading into device memory straight out of the page cache: windows on the files, registered for the device to read.

No copy on the host, at the price of locking every page of a window; it pays on tmpfs, and where the bus is slower than
the driver is at locking pages. The mappings are read-only: a private writable one would have every page copied.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from coldctl.errors import ColdctlError, from_os_error
from coldctl.events import Events
from coldctl.loader.device.copies import Copies, PlainCopies
from coldctl.loader.device.flights import Flight, Flights
from coldctl.loader.device.protocol import Bytes, Device, Registration
from coldctl.loader.device.ring_engine import copy_plainly
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.populate import populate
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.syscalls import map_read_only, unmap
from coldctl.units import MIB

CHUNK_BYTES = 64 * MIB
_WINDOWS = 4


class MappedEngine:
    """Up to four windows of 64 MiB at once. Gathered tensors go through ordinary memory.

    With `unmapped` others did too, because they could not be mapped.
    """

    def __init__(self, device: Device, routes: Routes, events: Events, *, deadline_seconds: float) -> None:
        self.reads = Reads()
        self.plain = PlainCopies()
        self.unmapped = False
        self._batch = NOTHING
        self._device = device
        self._routes = routes
        self._events = events
        self._stream = device.stream()
        self.copies = Copies(self._stream.record(), 1)
        self._windows = [_Window() for _ in range(_WINDOWS)]
        self._flights: Flights[_Window] = Flights(
            self._windows,
            [self._stream],
            deadline_seconds=deadline_seconds,
            sent=lambda _: None,
            landed=self._landed,
            events=events,
        )

    def run(self, batch: Batch) -> None:
        """Bring all transfers into the arena. Returns when the last copy is over."""
        self._batch = batch
        read_all(batch, self._move, self._routes, self.reads, self._events)
        self._flights.await_all()

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        if transfer.gather:
            self._move_plainly(filler, transfer)
            return
        window = self._flights.acquire()
        try:
            window.close()
            mapped = window.open(self._device, filler, transfer)
        except BaseException:
            self._flights.release(window)
            raise
        if mapped:
            self._flights.send(window, self._copies(window, transfer), transfer, 0)
            return
        self._flights.release(window)
        self.unmapped = True
        self._move_plainly(filler, transfer)

    def _move_plainly(self, filler: Filler, transfer: Transfer) -> None:
        copy_plainly(self._device, self._batch.arena, filler, transfer, self.plain)
        self._batch.arrivals.done(transfer)

    def _copies(self, window: _Window, transfer: Transfer) -> Iterable[tuple[Bytes, Bytes]]:
        from_bytes = 0
        for at_bytes, nbytes in transfer.pieces:
            to = self._batch.arena[transfer.at_bytes + at_bytes : transfer.at_bytes + at_bytes + nbytes]
            yield to, window.tensor(from_bytes, nbytes)
            from_bytes += nbytes

    def _landed(self, flight: Flight) -> None:
        self.copies.landed(flight)
        self._batch.arrivals.done(flight.transfer)

    def close(self) -> None:
        """Give the windows back, after the copies under way."""
        self._batch = NOTHING
        windows = self._windows

        def give_back() -> None:
            for window in windows:
                window.close()

        self._flights.close(give_back)


class _Window:
    """A mapped and registered part of a file, or nothing."""

    def __init__(self) -> None:
        self._address = 0
        self._nbytes = 0
        self._skipped_bytes = 0
        self._registration: Registration | None = None

    def open(self, device: Device, filler: Filler, transfer: Transfer) -> bool:
        """Map the transfer's range, have all of its pages read, and register them.

        False where the process has no room to map it: then it is to be read instead.
        """
        file = filler.local(transfer)
        self._skipped_bytes = transfer.offset_bytes % PAGE_BYTES
        self._nbytes = self._skipped_bytes + transfer.nbytes
        try:
            self._address = map_read_only(file.fd, transfer.offset_bytes - self._skipped_bytes, self._nbytes)
        except OSError as cause:
            if cause.errno == errno.ENOMEM:
                return False
            error = from_os_error(cause, "map", transfer.source.name)
            error.locate(stage="read", file=transfer.source.name, tensor=transfer.name)
            raise error from cause
        populate(self._address, filler, transfer)
        try:
            self._registration = device.register(self._address, self._nbytes)
        except ColdctlError as error:
            error.locate(stage="pin", file=transfer.source.name, tensor=transfer.name)
            raise
        return True

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
