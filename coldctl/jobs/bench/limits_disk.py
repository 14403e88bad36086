"""The disk's limit: direct reads of the checkpoint's own files at several depths, and cold reads through the cache.

Every measurement begins with the files out of the page cache, since some filesystems answer direct reads from it. It
goes on where the one before stopped, so that a cache below (a hypervisor's, a controller's) is not asked for the same
bytes again and again.
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coldctl.errors import EnvironmentLacksError, UnreadableError
from coldctl.events import Events
from coldctl.jobs.bench.cache_state import make_cold, residency_of
from coldctl.jobs.bench.counted import Counted
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.mounts import filesystem_of
from coldctl.loader.pages.evict import IN_MEMORY
from coldctl.loader.plan import Segment
from coldctl.loader.pool import Worker, share_out
from coldctl.loader.source import LastOpened, LocalFile, OpenSource, Source
from coldctl.loader.syscalls import PAGE_BYTES
from coldctl.units import GIB, MIB

PIECE_BYTES = 4 * MIB
DEPTHS = (1, 4, 16, 32)
BUFFERED_READERS = 4
BUFFERED_PASSES = 4
MOST_BYTES = 4 * GIB
MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DiskRates:
    """In bytes per second; null where not measured, with the reason. `depth` is that of the best direct rate."""

    direct: float | None
    depth: int | None
    buffered: float | None
    unmeasured: dict[str, str]


def measure_disk(checkpoint: Checkpoint, events: Events) -> DiskRates:
    """The rates of the disk under `checkpoint`, whose files are out of the page cache, or nearly, afterwards.

    One measurement is 4 GiB, one pass over the files or about 2 s, whichever is least; several are made, and the best
    counts. Raises StoppedError, and
    what reading a file raises (UnreadableError, ChangedError).
    """
    return _Disk(checkpoint, events).rates()


def unmeasured(reason: str) -> DiskRates:
    """No rates, for a reason that goes for all."""
    return DiskRates(None, None, None, {"disk_direct": reason, "disk_buffered": reason})


class _Disk:
    def __init__(self, checkpoint: Checkpoint, events: Events) -> None:
        self._files = [shard.path for shard in checkpoint.shards]
        self._events = events
        self._most_bytes = min(MOST_BYTES, checkpoint.bytes)
        pieces = [piece for shard in checkpoint.shards for piece in _pieces(shard.source)]
        self._pieces = itertools.cycle(pieces)
        self._whole_pages = itertools.cycle([shorter for piece in pieces if (shorter := _in_whole_pages(piece)).nbytes])

    def rates(self) -> DiskRates:
        filesystem = filesystem_of(self._files[0])
        if filesystem in IN_MEMORY:
            return unmeasured(f"{filesystem} has no disk")
        if lacks := make_cold(self._files, self._events).lacks:
            return unmeasured(f"the files cannot be had out of the page cache: {lacks}")
        reasons = {}
        direct, depth, buffered = None, None, None
        try:
            buffered = self._best_buffered()
        except UnreadableError as error:
            reasons["disk_buffered"] = error.message
        try:
            direct, depth = self._best_direct(filesystem)
        except (UnreadableError, EnvironmentLacksError) as error:
            reasons["disk_direct"] = error.message
        return DiskRates(direct, depth, buffered, reasons)

    def _best_buffered(self) -> float:
        """The best of a few passes: one over a small checkpoint is too short to tell."""
        begun_seconds, rates = time.perf_counter(), list[float]()
        while len(rates) < BUFFERED_PASSES and time.perf_counter() - begun_seconds < MOST_SECONDS:
            make_cold(self._files, self._events)
            rates.append(self._rate(self._pieces, BUFFERED_READERS, lambda source: source.open()))
        return max(rates)

    def _best_direct(self, filesystem: str) -> tuple[float, int]:
        """The best rate and its depth. Raises EnvironmentLacksError where direct reads are none."""

        def open_direct(source: Source) -> OpenSource:
            if found := source.open_direct():
                return found
            raise EnvironmentLacksError(f"{filesystem} takes no direct reads")

        rates = {}
        for depth in DEPTHS:
            make_cold(self._files, self._events)
            rates[depth] = self._rate(self._whole_pages, depth, open_direct)
            if (residency_of(self._files).resident_bytes or 0) > self._most_bytes // 2:
                raise EnvironmentLacksError(
                    f"{filesystem} reads through the page cache where direct reads are asked for"
                )
        best = max(rates, key=lambda depth: rates[depth])
        return rates[best], best

    def _rate(self, pieces: Iterator[Segment], readers: int, open_source: Callable[[Source], OpenSource]) -> float:
        @contextmanager
        def make_worker() -> Iterator[Worker[Segment]]:
            # With its pages there: some filesystems do not fault them in for direct reads.
            memory = mmap.mmap(-1, PIECE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
            buffer = memoryview(memory)
            with LastOpened(open_source, checked=False) as opened:

                def read(piece: Segment) -> Iterator[int]:
                    opened.get(piece.source).read_into(buffer[: piece.nbytes], piece.offset_bytes)
                    yield piece.nbytes

                yield read

        counted = Counted(self._events)
        begun_seconds = time.perf_counter()
        share_out(self._budgeted(pieces, begun_seconds), make_worker, counted, first=readers, cap=readers)
        return counted.bytes / (time.perf_counter() - begun_seconds)

    def _budgeted(self, pieces: Iterator[Segment], begun_seconds: float) -> Iterator[Segment]:
        """The next pieces, as many as one measurement may read."""
        left_bytes = self._most_bytes
        for piece in pieces:
            yield piece
            left_bytes -= piece.nbytes
            if left_bytes < PIECE_BYTES or time.perf_counter() - begun_seconds > MOST_SECONDS:
                return


def _pieces(source: LocalFile) -> Iterator[Segment]:
    for offset_bytes in range(0, source.size_bytes, PIECE_BYTES):
        yield Segment(source, offset_bytes, min(PIECE_BYTES, source.size_bytes - offset_bytes))


def _in_whole_pages(piece: Segment) -> Segment:
    return piece._replace(nbytes=piece.nbytes - piece.nbytes % PAGE_BYTES)
