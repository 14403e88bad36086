"""Loading into no memory at all: files mapped read-only, and every page that is wanted read into the page cache.

Shared and read-only, never private and writable: the kernel would copy each page that a device or a loader touches.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from coldctl.errors import ColdctlError, UnreadableError
from coldctl.events import Events
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.mapped import Mapping
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer, alone
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.source import OpenLocalFile
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
        firsts: dict[int, Wanted] = {}
        for each in wanted:
            firsts.setdefault(id(each.source), each)
        with Filler(self._routes, ()) as filler:
            for key, first in firsts.items():
                self.maps[key] = Mapping(filler.local(alone(first, 0)).fd, first.source.size_bytes)

    def run(self, batch: Batch) -> None:
        """Have the pages of all transfers read."""

        def move(filler: Filler, transfer: Transfer) -> None:
            opened = filler.local(transfer)  # opened, so that a file that was changed is found out
            try:
                self._populate(transfer, opened)
            except ColdctlError as error:
                error.locate(stage="read", file=transfer.source.name, tensor=transfer.name)
                raise
            filler.read_bytes += transfer.nbytes
            batch.arrivals.done(transfer)

        read_all(batch, move, self._routes, self.reads, self._events)

    def _populate(self, transfer: Transfer, opened: OpenLocalFile) -> None:
        skipped_bytes = transfer.offset_bytes % PAGE_BYTES
        address = self.maps[id(transfer.source)].address + transfer.offset_bytes - skipped_bytes
        read_ahead_in_large_pieces(address, skipped_bytes + transfer.nbytes)
        try:
            populate_read(address, skipped_bytes + transfer.nbytes)
        except OSError as cause:
            if cause.errno == errno.EINVAL:  # a kernel before 5.14 reads them when they are used
                return
            opened.check_unchanged()  # the kernel says the same of bad blocks and of what a file has lost
            name, offset_bytes = transfer.source.name, transfer.offset_bytes
            message = f"cannot read {name} between bytes {offset_bytes} and {offset_bytes + transfer.nbytes}"
            raise UnreadableError(message, file=name, offset_bytes=offset_bytes) from cause

    def close(self) -> None:
        self.maps.clear()
