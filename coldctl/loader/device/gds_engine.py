"""Loading into device memory from storage, past the host's memory: GPUDirect Storage, where it is really there.

Whole pages go by GDS. What is not, and what is scattered over slots or gathered, goes through ordinary memory; where
that is all there is, nothing is loaded. The first chunk of every file is compared with the file, read the usual way,
before GDS is believed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from coldctl.errors import ColdctlError, CorruptedError, EnvironmentLacksError
from coldctl.events import Events
from coldctl.loader.device.copies import PlainCopies
from coldctl.loader.device.protocol import Bytes, Device, Gds, GdsFile
from coldctl.loader.device.ring_engine import copy_plainly
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.route import Routes
from coldctl.loader.load.staging import staging
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.source import LocalFile
from coldctl.units import MIB

CHUNK_BYTES = 64 * MIB
"""cuFile shares a read of this size out to its own threads."""


class GdsEngine:
    """Raises EnvironmentLacksError, saying what is missing, where GDS is not there: it is never replaced in silence."""

    def __init__(self, device: Device, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self.plain = PlainCopies()
        self.gds_bytes = 0
        self._batch = NOTHING
        self._device = device
        self._routes = routes
        self._events = events
        self._gds: Gds | None = device.gds()
        self._files: dict[int, GdsFile] = {}
        self._lock = threading.Lock()

    def refuse_without_pages(self, transfers: Iterable[Transfer]) -> None:
        """Raise EnvironmentLacksError where nothing has gone by GDS yet, and no byte of `transfers` would."""
        nbytes = 0
        for transfer in transfers:
            if self.gds_bytes or _pages(transfer):
                return
            nbytes += transfer.nbytes
        if nbytes:
            error = EnvironmentLacksError(
                f"none of these {nbytes} bytes can go by GDS: no tensor can land in place, since all of them lie "
                "scattered, off their alignment or in parts of a page",
                hint="use mode ring or direct, or repack the checkpoint",
            )
            error.locate(stage="read")
            raise error

    def run(self, batch: Batch) -> None:
        """Bring all transfers into the arena."""
        self._batch = batch
        read_all(batch, self._move, self._routes, self.reads, self._events)

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        source, pages = transfer.source, _pages(transfer)
        if not (pages and isinstance(source, LocalFile)):
            self._plainly(filler, transfer)
            self._batch.arrivals.done(transfer)
            return
        for part in (transfer.part(0, pages.start), transfer.part(pages.stop, transfer.nbytes)):
            if part.nbytes:
                self._plainly(filler, part)
        self._directly(filler, source, transfer.part(pages.start, pages.stop))
        self._batch.arrivals.done(transfer)

    def _plainly(self, filler: Filler, transfer: Transfer) -> None:
        copy_plainly(self._device, self._batch.arena, filler, transfer, self.plain)

    def _directly(self, filler: Filler, source: LocalFile, transfer: Transfer) -> None:
        to = self._batch.arena[transfer.at_bytes : transfer.at_bytes + transfer.nbytes]
        try:
            filler.local(transfer).check_unchanged()
            file, is_new = self._open(source)
            file.read(to, transfer.offset_bytes)
        except ColdctlError as error:
            if error.stage is None:  # of GDS, which knows files by their paths
                error.file = source.name
            filler.locate(error, transfer)
            raise
        filler.read_bytes += transfer.nbytes
        if is_new:
            self._compare(filler, transfer, to)
        with self._lock:
            self.gds_bytes += transfer.nbytes

    def _open(self, source: LocalFile) -> tuple[GdsFile, bool]:
        with self._lock:
            if id(source) in self._files:
                return self._files[id(source)], False
            assert self._gds is not None
            file = self._gds.open(source.path)
            self._files[id(source)] = file.__enter__()
            with source.open():  # GDS went by the path: it must still lead to the file whose header was read
                return file, True

    def _compare(self, filler: Filler, transfer: Transfer, came: Bytes) -> None:
        import torch

        expected = staging(transfer.nbytes, transfer)
        filler.fill(transfer, expected.data)
        if not torch.equal(came.cpu(), torch.from_numpy(expected)):
            message = f"GDS brought other bytes than {transfer.source.name} holds from byte {transfer.offset_bytes} on"
            error = CorruptedError(message, hint="use mode ring, and check the GDS installation")
            error.locate(stage="read", file=transfer.source.name, tensor=transfer.name)
            raise error

    def close(self) -> None:
        """Close the files, and let go of what GDS keeps on the device."""
        self._batch = NOTHING
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()
        self._gds = None


def _pages(transfer: Transfer) -> range:
    """The bytes of it that go by GDS: whole pages of a file that are one piece here and there. Empty for none."""
    if not (transfer.in_place and isinstance(transfer.source, LocalFile)):
        return range(0)
    head_bytes = min(-transfer.offset_bytes % PAGE_BYTES, transfer.nbytes)
    return range(head_bytes, transfer.nbytes - (transfer.nbytes - head_bytes) % PAGE_BYTES)
