"""How tensors are read: each thread has one buffer, fills it by pread, and hands each piece on while the CPU's
cache still holds it. Memory is threads x one piece whatever the checkpoint, and no queue stands between disk and sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from coldctl.errors import UnreadableError
from coldctl.events import Events
from coldctl.loader.format.header import Tensor
from coldctl.loader.plan import Segment
from coldctl.loader.pool import Worker, default_streams_cap, share_out
from coldctl.loader.scratch import scratch
from coldctl.loader.sink import Sink
from coldctl.loader.source import LastOpened, OpenSource, Source
from coldctl.units import MIB

PIECE_BYTES = 1 * MIB
"""Stays in a server core's second-level cache. Divides BLOCK_BYTES, so that no piece crosses a block."""


_FIRST_THREADS = 2

Unreadable = Callable[[Segment, UnreadableError], None]


def read(
    segments: Iterable[Segment],
    sink: Sink,
    events: Events,
    *,
    unreadable: Unreadable | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> int:
    """Give every tensor of `segments` to `sink`, and return the number of threads that were used. A tensor of at most
    `piece_bytes` comes in one piece.

    Raises, after all threads have ended, the first of UnreadableError, ChangedError, OutOfMemoryError, StoppedError and
    whatever the sink raised. With `unreadable`, a segment whose bytes cannot be read is handed to that instead, from
    any thread, and reading goes on; the sink may have seen a part of it. A source is checked to be unchanged when it is
    opened and when its last segment is done.
    """

    @contextmanager
    def make_worker() -> Iterator[Worker[Segment]]:
        buffer = scratch(piece_bytes)
        with LastOpened(lambda source: source.open(), checked=True) as opened:

            def work(segment: Segment) -> Iterator[int]:
                try:
                    yield from _pieces(segment, opened.get(segment.source), sink, buffer)
                except UnreadableError as error:
                    if unreadable is None:
                        raise
                    unreadable(segment, error)

            yield work

    return share_out(segments, make_worker, events, first=_FIRST_THREADS, cap=default_streams_cap())


def _pieces(segment: Segment, opened: OpenSource, sink: Sink, buffer: memoryview) -> Iterator[int]:
    for batch in _batches(segment.tensors, len(buffer)):
        first, last = batch[0], batch[-1]
        if first.nbytes > len(buffer):
            yield from _large(first, segment.source, opened, sink, buffer)
            continue
        start_bytes = first.offset_bytes
        piece = buffer[: last.offset_bytes + last.nbytes - start_bytes]
        opened.read_into(piece, start_bytes)
        for tensor in batch:
            at_bytes = tensor.offset_bytes - start_bytes
            sink.accept(segment.source, tensor, 0, piece[at_bytes : at_bytes + tensor.nbytes])
        yield len(piece)


def _large(tensor: Tensor, source: Source, opened: OpenSource, sink: Sink, buffer: memoryview) -> Iterator[int]:
    for start_bytes in range(0, tensor.nbytes, len(buffer)):
        piece = buffer[: min(len(buffer), tensor.nbytes - start_bytes)]
        opened.read_into(piece, tensor.offset_bytes + start_bytes)
        sink.accept(source, tensor, start_bytes, piece)
        yield len(piece)


def _batches(tensors: Iterable[Tensor], most_bytes: int) -> Iterator[list[Tensor]]:
    """Neighbours that fit one buffer together; a tensor larger than the buffer alone."""
    batch: list[Tensor] = []
    batch_bytes = 0
    for tensor in tensors:
        if batch and batch_bytes + tensor.nbytes > most_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(tensor)
        batch_bytes += tensor.nbytes
    if batch:
        yield batch
