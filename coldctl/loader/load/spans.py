"""What every reader and every copy of a load did when, for those who draw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coldctl.loader.device.gds_engine import GdsEngine
from coldctl.loader.device.mapped_engine import MappedEngine
from coldctl.loader.device.ring_engine import RingEngine
from coldctl.loader.load.choice import LANES
from coldctl.loader.load.clock import Timed
from coldctl.loader.load.per_tensor import PerTensorEngine
from coldctl.loader.load.session import Session
from coldctl.results.load import Span


def spans_of(session: Session) -> tuple[Span, ...]:
    """The spans of a load that is over: its stages (tracks named for them), `reader n`, `copy`, or `copy q` where there
    are lanes, and `plain copy` for what no stream copied. Those of a track are in the order in which they began."""
    engine, begun_seconds = session.engine, session.stages.begun_seconds
    spans = list(session.stages.spans())
    for number, reads in enumerate(_at_once(engine.reads.by_reader)):
        spans += _spans(f"reader {number + 1}", reads, -begun_seconds)
    if isinstance(engine, RingEngine | MappedEngine):
        for lane, copies in zip(_lanes(engine.copies.lanes), engine.copies.by_lane, strict=True):
            spans += _spans(lane, copies, engine.copies.begun_seconds - begun_seconds)
    if isinstance(engine, RingEngine | MappedEngine | GdsEngine | PerTensorEngine):
        spans += _spans("plain copy", engine.plain.done, -begun_seconds)
    return tuple(spans)


def _at_once(by_reader: Iterable[list[Timed]]) -> list[list[Timed]]:
    """What threads did one after the other goes together, so that there are as many as worked at the same time."""
    readers: list[list[Timed]] = []
    for reads in sorted(filter(None, by_reader)):
        idle = next((reader for reader in readers if reader[-1].end_seconds <= reads[0].begin_seconds), None)
        if idle is None:
            readers.append(list(reads))
        else:
            idle += reads
    return readers


def _lanes(count: int) -> Sequence[str]:
    return ["copy"] if count == 1 else [f"copy {lane}" for lane in LANES]


def _spans(track: str, done: Iterable[Timed], shift_seconds: float) -> Iterator[Span]:
    for each in sorted(done):
        yield Span(
            track,
            each.tensor,
            each.begin_seconds + shift_seconds,
            each.end_seconds - each.begin_seconds,
            each.nbytes,
        )
