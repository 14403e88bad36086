"""Segments into the page cache: shared out to threads, every failure kept with its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from coldctl.events import Events
from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.pages.pieces import Piece, pieces, whole
from coldctl.loader.pages.warm import WINDOW_BYTES, PageReader
from coldctl.loader.plan import Segment
from coldctl.loader.pool import Worker, share_out
from coldctl.loader.source import LastOpened, OpenLocalFile
from coldctl.results.facts import FailedRange


@dataclass(frozen=True, slots=True)
class Warmed:
    read_bytes: int
    streams: int
    failed: list[FailedRange]

    def then(self, more: Warmed) -> Warmed:
        return Warmed(
            self.read_bytes + more.read_bytes, max(self.streams, more.streams), _merged([*self.failed, *more.failed])
        )


NOTHING = Warmed(0, 0, [])


def warm(
    segments: list[Segment], checkpoint: Checkpoint, reader: PageReader, cap: int, events: Events, *, exactly: bool
) -> Warmed:
    """Bring `segments` of `checkpoint` in by `reader`, on at most `cap` threads. Raises ChangedError, StoppedError.

    `exactly`: nothing beside them comes in. Without it reading ahead from one into another is welcome, and faster.
    """
    files = {shard.name: shard.source for shard in checkpoint.shards}
    failed: list[FailedRange] = []
    lock = threading.Lock()

    def bring(piece: Piece, opened: LastOpened[OpenLocalFile]) -> Iterator[int]:
        fd = opened.get(piece.segment.source).fd
        read = reader.read_exactly if piece.exact else reader.read
        for window in plan.cut(piece.segment, WINDOW_BYTES):
            for offset_bytes, length_bytes, error in read(fd, window.offset_bytes, window.nbytes):
                with lock:
                    failed.append(FailedRange(window.source.name, offset_bytes, length_bytes, error))
            yield window.nbytes

    @contextmanager
    def make_worker() -> Iterator[Worker[tuple[Piece, ...]]]:
        with LastOpened(lambda source: files[source.name].open(), checked=False) as opened:
            yield lambda group: (nbytes for piece in group for nbytes in bring(piece, opened))

    if not segments:
        return NOTHING
    events.begin("warming", sum(segment.nbytes for segment in segments))
    groups = pieces(segments, reader.reach_bytes) if exactly else whole(segments)
    streams = share_out(groups, make_worker, events, first=1, cap=cap)
    events.end()
    failed = _merged(failed)
    failed_bytes = sum(range_.length_bytes for range_ in failed)
    return Warmed(sum(segment.nbytes for segment in segments) - failed_bytes, streams, failed)


def _merged(failed: list[FailedRange]) -> list[FailedRange]:
    """In file order, with neighbours that failed for the same reason as one range."""
    merged: list[FailedRange] = []
    for found in sorted(failed, key=lambda range_: (range_.file, range_.offset_bytes)):
        last = merged[-1] if merged else None
        if last and (last.file, last.error) == (found.file, found.error) and _end(last) == found.offset_bytes:
            merged[-1] = replace(last, length_bytes=last.length_bytes + found.length_bytes)
        else:
            merged.append(found)
    return merged


def _end(failed: FailedRange) -> int:
    return failed.offset_bytes + failed.length_bytes
