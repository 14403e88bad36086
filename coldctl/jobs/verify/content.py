"""The bytes of a checkpoint in one pass: digests of every tensor, and values that frameworks disagree about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from coldctl.errors import UnreadableError
from coldctl.events import Events
from coldctl.loader import plan, reader
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.plan import Segment
from coldctl.loader.reader import Unreadable
from coldctl.loader.scan import BoolScan
from coldctl.loader.sink import Digest, Digests, Sink, Tee


@dataclass(frozen=True, slots=True)
class Content:
    """By file and tensor name: digests of what was read, BOOL tensors with odd values, and what could not be read."""

    digests: dict[tuple[str, str], Digest]
    odd_bools: set[tuple[str, str]]
    unreadable: dict[tuple[str, str], str]


def read_content(checkpoint: Checkpoint, events: Events, *, digests: bool) -> Content:
    """Read every tensor once, or only BOOL tensors when no digests are wanted. Raises ChangedError, StoppedError."""
    bools, hashes = BoolScan(), Digests(sums=False)
    sink: Sink = Tee(hashes, bools) if digests else bools
    pairs = plan.ordered_tensors(checkpoint, "file")
    segments = list(plan.tensor_segments(p for p in pairs if digests or p[1].dtype == "BOOL"))
    failures: list[tuple[Segment, str]] = []
    lock = threading.Lock()

    def note(segment: Segment, error: UnreadableError) -> None:
        with lock:
            failures.append((segment, error.message))

    _read(segments, sink, note, "verifying", events)
    suspects = [segment for failed, _ in failures for segment in _one_by_one(failed)]
    failures.clear()
    _read(suspects, sink, note, "reading one by one", events)
    unreadable = {(segment.source.name, segment.tensors[0].name): error for segment, error in failures}
    read = {key: digest for key, digest in hashes.of.items() if key not in unreadable}
    return Content(read, bools.found, unreadable)


def _read(segments: list[Segment], sink: Sink, note: Unreadable, label: str, events: Events) -> None:
    if segments:
        events.begin(label, sum(segment.nbytes for segment in segments))
        reader.read(segments, sink, events, unreadable=note)
        events.end()


def _one_by_one(segment: Segment) -> Iterator[Segment]:
    """Each tensor of a segment that could not be read whole, so that only the ones on bad blocks are called unread."""
    for tensor in segment.tensors:
        yield Segment(segment.source, tensor.offset_bytes, tensor.nbytes, (tensor,))
