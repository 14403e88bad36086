"""Every tensor in memory of its own, one after the other, as plain loaders do it: a baseline."""

from __future__ import annotations

import time
from typing import Any

from coldctl.errors import ColdctlError
from coldctl.events import Events
from coldctl.loader.device.copies import PlainCopies
from coldctl.loader.device.protocol import Device
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.clock import Timed
from coldctl.loader.load.engine import Reads
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.host import refuse_without_room
from coldctl.loader.load.route import Routes
from coldctl.loader.load.staging import staging
from coldctl.loader.load.transfers import Transfer


class PerTensorEngine:
    """`memory[n]` holds tensor n of the plan: a uint8 numpy array, or device memory where there is a `device`."""

    def __init__(self, device: Device | None, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self.memory: dict[int, Any] = {}
        self.plain = PlainCopies()
        self._device = device
        self._read: list[Timed] = []
        self._routes = routes
        self._events = events

    def run(self, batch: Batch) -> None:
        """Read each tensor whole: there is one transfer for each (`transfers.alone`), and no arena."""
        self.reads.streams = 1
        if self._device is None:
            refuse_without_room(sum(transfer.nbytes for transfer in batch.transfers))
        self._read = []
        with Filler(self._routes, batch.wanted) as filler:
            for transfer in batch.transfers:
                self._events.raise_if_stopped()
                try:
                    self._one(filler, transfer)
                except ColdctlError as error:
                    error.locate(stage="allocate", file=transfer.source.name, tensor=transfer.name)
                    raise
                batch.arrivals.done(transfer)
                self._events.advance(transfer.nbytes)
            self.reads.add(filler, self._read)

    def _one(self, filler: Filler, transfer: Transfer) -> None:
        host = staging(transfer.nbytes, transfer)
        begun_seconds = time.perf_counter()
        filler.fill(transfer, host.data)
        read_seconds = time.perf_counter()
        self._read.append(Timed(begun_seconds, read_seconds, transfer.nbytes, transfer.name))
        if self._device is None:
            self.memory[transfer.first] = host
            return
        import torch

        to = self._device.allocate_plainly(transfer.nbytes)
        try:
            self._device.copy_plainly(to, torch.from_numpy(host))
        except ColdctlError as error:
            error.locate(stage="h2d", file=transfer.source.name, tensor=transfer.name)
            raise
        self.plain.add(Timed(read_seconds, time.perf_counter(), transfer.nbytes, transfer.name))
        self.memory[transfer.first] = to

    def close(self) -> None:
        self.memory.clear()
