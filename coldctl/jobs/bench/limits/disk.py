"""The disk's limit: cold reads of the checkpoint's own files, through the page cache and past it, by several threads.

Every pass begins with the files out of the page cache, and counts only when they were measured to be: some filesystems
answer even direct reads from it. It goes on where the one before stopped, so that a cache below (a hypervisor's, a
controller's) is not asked for the same bytes again and again. Only reading is clocked: threads and buffers are there
before the first piece.
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from coldctl.errors import EnvironmentLacksError, UnreadableError
from coldctl.events import Events
from coldctl.jobs.bench.cache_state import make_cold, residency_of
from coldctl.jobs.bench.counted import Clocked
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.budget import budget
from coldctl.loader.host.mounts import filesystem_of
from coldctl.loader.pages.evict import IN_MEMORY
from coldctl.loader.plan import Segment
from coldctl.loader.pool import Worker, share_out
from coldctl.loader.source import LastOpened, LocalFile, OpenSource, Source
from coldctl.loader.syscalls import PAGE_BYTES
from coldctl.units import GIB, MIB

PIECE_BYTES = 4 * MIB
DEPTHS = (1, 4, 16, 32)
"""Of direct reads: how many are under way at a time."""

BUFFERED_READERS = (2, 4, 8, 32)
"""From as few as a load begins with to the most that one takes by itself: which is fastest depends on the CPUs."""

TURNS = 4
"""How often each width is measured, unless that takes longer than MOST_SECONDS: one pass over a small checkpoint is too
short to tell."""

MOST_BYTES = 4 * GIB
MOST_SECONDS = 2.0

_OpenSource = Callable[[Source], OpenSource]


@dataclass(frozen=True, slots=True)
class DiskRates:
    """In bytes per second; null where not measured, with the reason. `depth` is that of the best direct rate."""

    direct: float | None
    depth: int | None
    buffered: float | None
    unmeasured: dict[str, str]


def measure_disk(checkpoint: Checkpoint, events: Events) -> DiskRates:
    """The rates of the disk under `checkpoint`, whose files are out of the page cache, or nearly, afterwards.

    One pass is 4 GiB, all of the files or about 2 s, whichever is least; several are made, and the best counts. What
    cannot be had cold, or read, is not measured. Raises StoppedError, ChangedError, and what opening a file raises.
    """
    return _Disk(checkpoint, events).rates()


def unmeasured_disk(reason: str) -> DiskRates:
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
            return unmeasured_disk(f"{filesystem} has no disk")
        if lacks := self._lacks_cold():
            return unmeasured_disk(lacks)
        reasons: dict[str, str] = {}
        direct, depth, buffered = None, None, None
        try:
            buffered, _ = self._best(BUFFERED_READERS, self._buffered_rate)
        except (UnreadableError, EnvironmentLacksError) as error:
            reasons["disk_buffered"] = error.message
        try:
            direct, depth = self._best(DEPTHS, lambda depth: self._direct_rate(depth, filesystem))
        except (UnreadableError, EnvironmentLacksError) as error:
            reasons["disk_direct"] = error.message
        return DiskRates(direct, depth, buffered, reasons)

    def _best(self, widths: Sequence[int], rate_of: Callable[[int], float]) -> tuple[float, int]:
        """The best rate of the passes that were cold, and its width. None takes more than half of the memory that is
        free. Raises EnvironmentLacksError where there was none."""
        begun_seconds, rates = time.perf_counter(), list[tuple[float, int]]()
        lacks: str | None = "too little memory is free"
        for turn, width in itertools.product(range(TURNS), widths):
            if width * PIECE_BYTES > budget().headroom_bytes // 2:
                continue
            if turn and time.perf_counter() - begun_seconds > MOST_SECONDS:
                break
            lacks = self._lacks_cold()
            if lacks is None:
                rates.append((rate_of(width), width))
        if lacks and not rates:
            raise EnvironmentLacksError(lacks)
        return max(rates)

    def _lacks_cold(self) -> str | None:
        """Null when the files are measured to be out of the page cache now, and else why they are not."""
        lacks = make_cold(self._files, self._events).lacks
        return lacks and f"the files cannot be had out of the page cache: {lacks}"

    def _buffered_rate(self, readers: int) -> float:
        return self._rate(self._pieces, readers, lambda source: source.open())

    def _direct_rate(self, depth: int, filesystem: str) -> float:
        """Raises EnvironmentLacksError where direct reads are none."""

        def open_direct(source: Source) -> OpenSource:
            if found := source.open_direct():
                return found
            raise EnvironmentLacksError(f"{filesystem} takes no direct reads")

        rate = self._rate(self._whole_pages, depth, open_direct)
        if (residency_of(self._files).resident_bytes or 0) > self._most_bytes // 2:
            raise EnvironmentLacksError(f"{filesystem} reads through the page cache where direct reads are asked for")
        return rate

    def _rate(self, pieces: Iterator[Segment], readers: int, open_source: _OpenSource) -> float:
        """Bytes per second from the first piece begun, which is when all threads run, to the last one ended."""
        # With their pages there: a load reads into memory that is there, too, and some filesystems do not fault pages
        # in for direct reads.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        buffers = [memoryview(mmap.mmap(-1, PIECE_BYTES, flags)) for _ in range(readers)]

        @contextmanager
        def make_worker() -> Iterator[Worker[Segment]]:
            buffer = buffers.pop()
            with LastOpened(open_source, checked=False) as opened:

                def read(piece: Segment) -> Iterator[int]:
                    opened.get(piece.source).read_into(buffer[: piece.nbytes], piece.offset_bytes)
                    yield piece.nbytes

                yield read

        clocked = Clocked(self._events)
        share_out(self._budgeted(pieces, clocked), make_worker, clocked, first=readers, cap=readers)
        if not clocked.bytes:
            raise EnvironmentLacksError("the files are too small to be read in whole pages")
        return clocked.bytes / clocked.seconds

    def _budgeted(self, pieces: Iterator[Segment], clocked: Clocked) -> Iterator[Segment]:
        """The next pieces, as many as one pass may read. The first is asked for, and clocked from, when all threads run
        (`share_out` hands out nothing before)."""
        clocked.begin_clock()
        left_bytes = self._most_bytes
        for piece in pieces:
            yield piece
            left_bytes -= piece.nbytes
            if left_bytes < PIECE_BYTES or clocked.seconds > MOST_SECONDS:
                return


def _pieces(source: LocalFile) -> Iterator[Segment]:
    for offset_bytes in range(0, source.size_bytes, PIECE_BYTES):
        yield Segment(source, offset_bytes, min(PIECE_BYTES, source.size_bytes - offset_bytes))


def _in_whole_pages(piece: Segment) -> Segment:
    return piece._replace(nbytes=piece.nbytes - piece.nbytes % PAGE_BYTES)
