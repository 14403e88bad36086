"""Loading into host memory: one arena that threads read into, or memory of its own for every tensor."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import ColdctlError, OutOfMemoryError
from coldctl.events import Events
from coldctl.loader.host.budget import budget
from coldctl.loader.host.memory import read_kib
from coldctl.loader.load.batch import NOTHING, Batch
from coldctl.loader.load.engine import Reads, read_all
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.route import Routes
from coldctl.loader.load.transfers import Transfer
from coldctl.units import format_size


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous memory that begins on a page, freed with the last view of it. Shape [nbytes], zeros.

    Raises OutOfMemoryError when the kernel refuses it, and what `refuse_without_room` raises.
    """
    refuse_without_room(nbytes)
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise _too_little(nbytes, str(error)) from error
    with suppress(OSError):  # a kernel without huge pages only takes longer
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)[:nbytes]


def refuse_without_room(nbytes: int) -> None:
    """Raise OutOfMemoryError where memory would not fit what MemAvailable, swap and the caller's cgroups have left.

    The kernel grants more than there is, and kills whoever touches it. Passing does not promise the memory to the
    caller alone. Raises EnvironmentLacksError where that cannot be known.
    """
    try:
        free_bytes, limited_by = _free()
    except ColdctlError as error:
        error.locate(stage="allocate")
        raise
    if nbytes > free_bytes:
        raise _too_little(nbytes, f"{format_size(free_bytes)} are free by {limited_by}")


def _free() -> tuple[int, str]:
    found = budget()
    if found.limited_by != "MemAvailable":
        return found.headroom_bytes, found.limited_by
    return found.headroom_bytes + read_kib("/proc/meminfo", "SwapFree"), "MemAvailable"


def _too_little(nbytes: int, why: str) -> OutOfMemoryError:
    hint = 'load a share of it (tp, stage, experts), stream() it, or use alloc="map"'
    error = OutOfMemoryError(f"cannot get {format_size(nbytes)} of host memory for the tensors: {why}", hint=hint)
    error.locate(stage="allocate")
    return error


class HostEngine:
    """Threads read each transfer into its place in the arena."""

    def __init__(self, routes: Routes, events: Events) -> None:
        self.reads = Reads()
        self._batch = NOTHING
        self._routes = routes
        self._events = events

    def run(self, batch: Batch) -> None:
        self._batch = batch
        try:
            read_all(batch, self._move, self._routes, self.reads, self._events)
        finally:
            self._batch = NOTHING

    def _move(self, filler: Filler, transfer: Transfer) -> None:
        arena = memoryview(self._batch.arena)
        filler.fill(transfer, arena[transfer.at_bytes : transfer.at_bytes + transfer.span_bytes])
        self._batch.arrivals.done(transfer)

    def close(self) -> None:
        """Nothing is kept."""
