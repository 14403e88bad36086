"""What a load reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.results.facts import OrderFacts


@dataclass(frozen=True, slots=True)
class IntegrityFacts:
    """How tensors in memory were found to be what the checkpoint holds.

    `manifest_tensors` have the block sums that the manifest lists, `file_tensors` were held against the file, read a
    second time; of these every byte was compared where `exact` says so, or in host memory, and else their block sums.
    """

    manifest_tensors: int
    file_tensors: int
    exact: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a load: plan, allocate, pin, read, h2d or verify.

    `start_seconds` counts from the load's beginning. `seconds` is the union of the intervals in which the stage went
    on: stages overlap, and need not add up.
    """

    name: str
    start_seconds: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """Something that went on for a while: `track` says by whom (`reader 1`, `copy q`, a stage), `name` what it was.

    `start_seconds` counts from the load's beginning.
    """

    track: str
    name: str
    start_seconds: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class RingFacts:
    """The pinned memory of a load: `how` it was pinned is `registered` (an own mapping) or `torch`."""

    slots: int
    slot_bytes: int
    how: str
    halvings: int


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """The copies to the device. Rates are in device time, over the union of the copies' intervals.

    `calibrated_bytes_per_second` is what the bus gave before the load, null when it was not measured, and `fallback`
    says why plain copies took over, null when they did not. `plain_bytes` were copied plainly; they are all
    that there is to tell of gds, which has no stream. Where there are lanes, `overlap_share` is the share of the
    copying time in which two or more of them had a copy under way or waiting for its turn; whether that is bandwidth
    depends on the device.
    """

    streams: int
    bytes: int
    seconds: float
    bytes_per_second: float | None
    calibrated_bytes_per_second: float | None
    plain_bytes: int
    fallback: str | None
    overlap_share: float | None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How a load went. `mode` is the path that was taken, and `reason` why.

    `bytes` are those of the tensors, `arena_bytes` what was allocated for all of them together (0 when each has memory
    of its own, or none), `read_bytes` what was read of the files, and `direct_bytes` and `gds_bytes` the parts of it
    that went past the page cache. `attention_ready_seconds` has one entry for each layer of the main tower that has an
    attention block, in their order: from the load's beginning until it was in memory. `replicated` names the tensors
    that tp left whole.
    """

    device: str
    mode: str
    reason: str
    alloc: str
    order: str
    order_facts: OrderFacts | None
    tensors: int
    bytes: int
    arena_bytes: int
    read_bytes: int
    direct_bytes: int
    gds_bytes: int
    streams: int
    seconds: float
    first_layers_seconds: float | None
    attention_ready_seconds: tuple[float, ...]
    replicated: tuple[str, ...]
    stages: tuple[Stage, ...]
    ring: RingFacts | None
    copies: CopyFacts | None
    integrity: IntegrityFacts | None
    notes: tuple[str, ...]
