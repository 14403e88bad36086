"""Loading into no memory at all: files mapped read-only, and every page that is wanted read into the page cache.

Shared and read-only, never private and writable: the kernel would copy each page that a device or a loader touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coldctl.events import Events
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.mapped import Mapping
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.populate import populate
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer, alone
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.source import OpenLocalFile
from coldctl.loader.syscalls import cached_bytes
from coldctl.units import MIB

CHUNK_BYTES = 64 * MIB


class MappingEngine:
    """`maps` holds the mapping of each source by its identity. What is cold and cannot be read is an error here."""

    def __init__(self, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self.maps: dict[int, Mapping] = {}
        self._arrivals = NOTHING.arrivals
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
        """Have the pages of all transfers read that are not in the page cache.

        What is there already is mapped when it is used, which costs less than doing it for all.
        """
        self._arrivals = batch.arrivals
        try:
            if cold := list(self._not_cached(batch)):
                read_all(batch._replace(transfers=cold), self._move, self._routes, self.reads, self._events)
        finally:
            self._arrivals = NOTHING.arrivals

    def _not_cached(self, batch: Batch) -> Iterator[Transfer]:
        with Filler(self._routes, batch.wanted) as filler:
            for transfer in batch.transfers:
                if not _is_cached(filler.local(transfer), transfer):
                    yield transfer
                    continue
                batch.arrivals.done(transfer)
                self._events.advance(transfer.nbytes)
                self._events.raise_if_stopped()

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        first_page_bytes = transfer.offset_bytes - transfer.offset_bytes % PAGE_BYTES
        populate(self.maps[id(transfer.source)].address + first_page_bytes, filler, transfer)
        self._arrivals.done(transfer)

    def close(self) -> None:
        self.maps.clear()


def _is_cached(file: OpenLocalFile, transfer: Transfer) -> bool:
    """Whether every page of the range is in the page cache; False, too, where the kernel does not tell."""
    begin_bytes = transfer.offset_bytes - transfer.offset_bytes % PAGE_BYTES
    end_bytes = transfer.offset_bytes + transfer.nbytes
    nbytes = end_bytes + -end_bytes % PAGE_BYTES - begin_bytes
    try:
        return cached_bytes(file.fd, begin_bytes, nbytes) == nbytes
    except OSError:
        return False
