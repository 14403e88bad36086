"""Loading into no memory at all: files mapped read-only, and every page that is wanted read into the page cache.

Shared and read-only, never private and writable: the kernel would copy each page that a device or a loader touches.
"""

from __future__ import annotations

from collections.abc import Iterable

from coldctl.events import Events
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.mapped import Mapping
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.populate import populate
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer, alone
from coldctl.loader.load.wanted import Wanted
from coldctl.units import MIB

CHUNK_BYTES = 16 * MIB


class MappingEngine:
    """`maps` holds the mapping of each source by its identity. What is cold and cannot be read is an error here."""

    def __init__(self, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self.maps: dict[int, Mapping] = {}
        self._routes = routes
        self._events = events

    def map(self, wanted: Iterable[Wanted]) -> None:
        """Map the files of `wanted`. Raises OSError (ENOMEM, ENODEV) and what opening a source raises."""
        firsts: dict[int, Wanted] = {}
        for each in wanted:
            firsts.setdefault(id(each.source), each)
        with Filler(self._routes, ()) as filler:
            for key, first in firsts.items():
                self.maps[key] = Mapping(filler.local(alone(first, 0)).fd, first.source.size_bytes)

    def run(self, batch: Batch) -> None:
        """Have the pages of all transfers read."""

        def move(filler: Filler, transfer: Transfer) -> None:
            filler.local(transfer)  # opened, so that a file that was changed is found out
            # What is there already is mapped when it is used, which costs less than doing it for all.
            if not self._routes.is_resident(transfer.source, transfer.offset_bytes, transfer.nbytes):
                first_page_bytes = transfer.offset_bytes - transfer.offset_bytes % PAGE_BYTES
                populate(self.maps[id(transfer.source)].address + first_page_bytes, filler, transfer)
            batch.arrivals.done(transfer)

        read_all(batch, move, self._routes, self.reads, self._events)

    def close(self) -> None:
        self.maps.clear()
