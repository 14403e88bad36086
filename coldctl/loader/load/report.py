"""What is said of a load when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl.loader.device.copies import Copies
from coldctl.loader.device.gds_engine import GdsEngine
from coldctl.loader.device.mapped_engine import MappedEngine
from coldctl.loader.device.ring_engine import RingEngine
from coldctl.loader.load.mapping_engine import MappingEngine
from coldctl.loader.load.per_tensor import PerTensorEngine
from coldctl.loader.load.session import Session
from coldctl.loader.load.why import why
from coldctl.results.facts import OrderFacts
from coldctl.results.load import CopyFacts, IntegrityFacts, LoadReport, RingFacts
from coldctl.units import format_share, format_size


class Outcome(NamedTuple):
    """What a report needs beside the session: the tensors of the plan, when each came, and how long it all took."""

    tensors: int
    nbytes: int
    arrival_seconds: NDArray[np.float64]
    attention: Mapping[int, int]
    replicated: tuple[str, ...]
    seconds: float
    first_layers_seconds: float | None
    order_facts: OrderFacts | None


def report_of(session: Session, outcome: Outcome) -> LoadReport:
    """The report of a load that is over."""
    engine, settings = session.engine, session.settings
    mode, reason = _path(session)
    copies = _copies(session)
    return LoadReport(
        device=session.device.name if session.device else "cpu",
        mode=mode,
        reason=reason,
        alloc=_alloc(session),
        order=settings.order,
        order_facts=outcome.order_facts,
        tensors=outcome.tensors,
        bytes=outcome.nbytes,
        arena_bytes=session.arena_bytes,
        read_bytes=engine.reads.read_bytes,
        direct_bytes=engine.reads.direct_bytes,
        gds_bytes=engine.gds_bytes if isinstance(engine, GdsEngine) else 0,
        streams=engine.reads.streams,
        seconds=outcome.seconds,
        first_layers_seconds=outcome.first_layers_seconds,
        attention_ready_seconds=_attention_ready(session, outcome),
        replicated=outcome.replicated,
        stages=session.stages.results(),
        ring=_ring(engine) if isinstance(engine, RingEngine) else None,
        copies=copies,
        integrity=_integrity(session.integrity),
        notes=tuple(_notes(session, outcome, copies)),
    )


def _path(session: Session) -> tuple[str, str]:
    """The mode that was taken, and why."""
    engine, asked = session.engine, session.settings.mode
    if isinstance(engine, PerTensorEngine):
        return "per-tensor", "as asked for"
    if isinstance(engine, MappingEngine):
        return "map", "as asked for"
    if asked != "auto":
        return asked, "as asked for"
    direct, read = engine.reads.direct_bytes, engine.reads.read_bytes
    through = "ring" if isinstance(engine, RingEngine) else "buffered"
    return "direct" if direct and 2 * direct >= read else through, f"auto: {why(engine.reads.caused)}"


def _alloc(session: Session) -> str:
    if isinstance(session.engine, PerTensorEngine):
        return "per-tensor"
    return "map" if isinstance(session.engine, MappingEngine) else "arena"


def _copies(session: Session) -> CopyFacts | None:
    engine = session.engine
    if isinstance(engine, GdsEngine):
        return CopyFacts(
            streams=0,
            bytes=0,
            seconds=0.0,
            bytes_per_second=None,
            calibrated_bytes_per_second=None,
            plain_bytes=engine.plain.bytes,
            fallback=None,
            overlap_share=None,
        )
    if not isinstance(engine, RingEngine | MappedEngine):
        return None
    copies: Copies = engine.copies
    lanes = session.settings.lanes
    bus = engine.bus if isinstance(engine, RingEngine) else None
    seconds = copies.seconds
    return CopyFacts(
        streams=copies.lanes,
        bytes=copies.bytes,
        seconds=seconds,
        bytes_per_second=copies.bytes / seconds if seconds else None,
        calibrated_bytes_per_second=bus.calibrated_bytes_per_second if bus else None,
        plain_bytes=engine.plain.bytes,
        fallback=bus.complaint if bus else None,
        overlap_share=copies.overlap_share if lanes else None,
    )


def _ring(engine: RingEngine) -> RingFacts:
    ring = engine.ring
    return RingFacts(ring.slots, ring.slot_bytes, ring.how, ring.halvings)


def _attention_ready(session: Session, outcome: Outcome) -> tuple[float, ...]:
    """Seconds from the load's beginning, layer by layer: by the events of the lanes, or by the tensors' arrivals."""
    engine, begun_seconds = session.engine, session.stages.begun_seconds
    ready: dict[int, float] = {}
    for number, layer in outcome.attention.items():
        ready[layer] = max(ready.get(layer, 0.0), float(outcome.arrival_seconds[number]) - begun_seconds)
    if isinstance(engine, RingEngine):
        copies = engine.copies
        for layer, mark in engine.marks.ready.items():
            ready[layer] = copies.begun_seconds - begun_seconds + copies.since_base(mark.event)
    return tuple(ready[layer] for layer in sorted(ready))


def _integrity(facts: Sequence[IntegrityFacts]) -> IntegrityFacts | None:
    """All checks together. Each tensor counts once as held against the manifest and once as held against the file: with
    `exact` all are the latter, whatever the block sums had to be held against."""
    if not facts:
        return None
    exact = [each for each in facts if each.exact]
    return IntegrityFacts(
        sum(each.manifest_tensors for each in facts),
        sum(each.file_tensors for each in exact or facts),
        bool(exact),
        sum(each.seconds for each in facts),
    )


def _only_against_files(session: Session) -> int:
    """How many tensors were to be held against the manifest, and were held against their files only."""
    return sum(each.file_tensors for each in session.integrity if not each.exact)


def _notes(session: Session, outcome: Outcome, copies: CopyFacts | None) -> list[str]:
    notes = list(session.notes)
    if outcome.order_facts and outcome.order_facts.layers == 0:
        notes.append("no tensor's name shows a layer, so all counts as one")
    engine = session.engine
    if isinstance(engine, RingEngine) and engine.ring.halvings:
        notes.append(f"pinned memory was short, so the ring was halved {engine.ring.halvings} times")
    if unlisted := _only_against_files(session):
        notes.append(
            f"{unlisted} tensors have no sums in a coldctl.json (there is none, it lists them otherwise, or they are "
            "parts of tensors): they were held against their files only, which proves the copy and not the file"
        )
    if isinstance(engine, MappedEngine) and engine.unmapped:
        notes.append("parts of the files could not be mapped (ENOMEM), so they were read")
    if session.settings.mode == "direct" and 2 * engine.reads.direct_bytes < engine.reads.read_bytes:
        share = format_share(engine.reads.direct_bytes, engine.reads.read_bytes)
        notes.append(
            f"only {share} was read with O_DIRECT: the rest lies scattered, off its alignment or in parts of a page"
        )
    if isinstance(engine, GdsEngine) and 2 * engine.gds_bytes < outcome.nbytes:
        notes.append(
            f"only {format_share(engine.gds_bytes, outcome.nbytes)} was read by GDS, and "
            f"{format_size(engine.plain.bytes)} through host memory by plain copies: the rest lies scattered, off its "
            "alignment or in parts of a page"
        )
    if copies and copies.fallback:
        notes.append(copies.fallback)
    if session.settings.lanes and session.device and session.device.lanes_help is False:
        notes.append(
            "this device copies one way at a time: lanes order the copies and add no bandwidth, "
            "and their overlap is copies that wait for their turn"
        )
    return notes
