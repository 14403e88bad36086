"""Loading into no memory at all: files mapped read-only, and every page that is wanted read into the page cache.

Shared and read-only, never private and writable: the kernel would copy each page that a device or a loader touches.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from coldctl.errors import UnreadableError
from coldctl.events import Events
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.mapped import Mapping
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.source import Source
from coldctl.loader.syscalls import populate_read, read_ahead_in_large_pieces
from coldctl.units import MIB

CHUNK_BYTES = 16 * MIB


class MappingEngine:
    """`maps` holds the mapping of each source by its identity. What cannot be read is an error here, and not later."""

    def __init__(self, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self.maps: dict[int, Mapping] = {}
        self._routes = routes
        self._events = events

    def map(self, wanted: Iterable[Wanted]) -> None:
        """Map the files of `wanted`. Raises OSError (ENOMEM, ENODEV) and what opening a source raises."""
        sources: dict[int, Source] = {id(each.source): each.source for each in wanted}
        with Filler(self._routes, ()) as filler:
            for key, source in sources.items():
                self.maps[key] = Mapping(filler.descriptor(source), source.size_bytes)

    def run(self, batch: Batch) -> None:
        """Have the pages of all transfers read."""

        def move(filler: Filler, transfer: Transfer) -> None:
            filler.descriptor(transfer.source)  # opened, so that a file that was changed is found out
            self._populate(transfer)
            filler.read_bytes += transfer.nbytes
            batch.arrivals.done(transfer)

        read_all(batch, move, self._routes, self.reads, self._events)

    def _populate(self, transfer: Transfer) -> None:
        skipped_bytes = transfer.offset_bytes % PAGE_BYTES
        address = self.maps[id(transfer.source)].address + transfer.offset_bytes - skipped_bytes
        read_ahead_in_large_pieces(address, skipped_bytes + transfer.nbytes)
        try:
            populate_read(address, skipped_bytes + transfer.nbytes)
        except OSError as cause:
            if cause.errno == errno.EINVAL:  # a kernel before 5.14 reads them when they are used
                return
            end_bytes = transfer.offset_bytes + transfer.nbytes
            error = UnreadableError(
                f"cannot read {transfer.source.name} between bytes {transfer.offset_bytes} and {end_bytes}",
                file=transfer.source.name,
                offset_bytes=transfer.offset_bytes,
            )
            error.locate(stage="read", tensor=transfer.name)
            raise error from cause

    def close(self) -> None:
        self.maps.clear()
