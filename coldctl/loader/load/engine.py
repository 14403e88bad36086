"""What all engines share: threads that take transfers in their order, and the facts that come out of a run."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from coldctl.events import Events
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.clock import Timed
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.route import Cause, Routes
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.pool import Worker, share_out
from coldctl.loader.scratch import shortage

_MOST_STREAMS = 32
_NETWORK_STREAMS = 8
_DIRECT_STREAMS = 8
_LOOKED_AT = 8


class Reads:
    """What the readers of a load have done so far, over all of its runs. `by_reader` has the reads of each thread,
    `caused` the bytes by why they came as they did."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.caused: Counter[Cause] = Counter()
        self.streams = 0
        self.by_reader: list[list[Timed]] = []
        self._lock = threading.Lock()

    @property
    def direct_bytes(self) -> int:
        """What went past the page cache."""
        return self.caused["direct"]

    def add(self, filler: Filler, reads: list[Timed]) -> None:
        with self._lock:
            self.read_bytes += filler.read_bytes
            self.caused += filler.caused
            self.by_reader.append(reads)


Move = Callable[[Filler, Transfer], None]
"""Brings one transfer where it belongs, reading through the filler."""


class Engine(Protocol):
    """Brings batches into memory, one at a time, and keeps what it needs for that from one to the next."""

    reads: Reads

    def run(self, batch: Batch) -> None:
        """Every byte of the batch's transfers is in its arena when this returns. Raises ColdctlError with its place."""

    def close(self) -> None:
        """Give back all but the arenas."""


def read_all(batch: Batch, move: Move, routes: Routes, reads: Reads, events: Events) -> None:
    """Do every transfer, begun in order, on as many threads as pay. Raises what `move` raised first.

    `move` is no closure over an arena, since a traceback keeps functions, and those what they close over.
    """
    wanted = batch.wanted

    @contextmanager
    def make_worker() -> Iterator[Worker[Transfer]]:
        done: list[Timed] = []
        with Filler(routes, wanted) as filler:

            def work(transfer: Transfer) -> Iterator[int]:
                begun_seconds = time.perf_counter()
                with shortage(stage="read", file=transfer.source.name, tensor=transfer.name):
                    move(filler, transfer)
                done.append(Timed(begun_seconds, time.perf_counter(), transfer.nbytes, transfer.name))
                yield transfer.nbytes

            try:
                yield work
            finally:
                reads.add(filler, done)

    first, cap = (min(threads, max(1, len(batch.transfers))) for threads in _streams(batch, routes))
    reads.streams = max(reads.streams, share_out(batch.transfers, make_worker, events, first=first, cap=cap))


def _streams(batch: Batch, routes: Routes) -> tuple[int, int]:
    """Threads to begin with, and at most: copying from the page cache takes CPUs, and waiting for a disk takes none.

    As many as were asked for. Else a network filesystem gets few, since its servers and clients have been seen to
    stall under many.
    """
    if batch.readers is not None:
        return batch.readers, batch.readers
    cpus = len(os.sched_getaffinity(0))
    sources = {id(each.source): each.source for each in batch.transfers}.values()
    if any(routes.is_on_network(source) for source in sources):
        return 2, _NETWORK_STREAMS
    most = max(4, min(_MOST_STREAMS, 2 * cpus))
    if _mostly_direct(batch, routes):
        return _DIRECT_STREAMS, max(_DIRECT_STREAMS, most)
    return max(2, min(8, cpus)), most


def _mostly_direct(batch: Batch, routes: Routes) -> bool:
    step = max(len(batch.transfers) // _LOOKED_AT, 1)
    direct = [routes.goes_direct(each.source, each.offset_bytes, each.nbytes) for each in batch.transfers[::step]]
    return 2 * sum(direct) > len(direct)
