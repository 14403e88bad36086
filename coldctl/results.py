"""What the jobs return. Field names are the JSON keys; numbers are in base units and named for them.

Keys are only ever added. `coldctl.report` turns these into text or JSON and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: where, what, and what to do. `file` is relative to the checkpoint's folder."""

    rule: str
    severity: Severity
    file: str | None
    tensor: str | None
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Extents:
    """How a file lies on its device. `extents` counts physically contiguous runs; null, with `reason`, when unknown.

    `ideal_extents` is the fewest that the filesystem can do for this size, `contiguous` the verdict of the two;
    both null, with `reason`, where the filesystem cannot be judged (compressed, tmpfs, network).
    """

    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    largest_extent_bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class AlignmentCount:
    """Tensors (and their bytes) that start on `boundary`: bytes, or `natural` for the size of their own dtype."""

    boundary: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file beside the weights that was left behind, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RepackedFile:
    path: str
    size_bytes: int
    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    extents_reason: str | None
    preallocated: bool | None


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What an order found in the names. `layers` of the main tower is 0 when no name shows one: then all tensors are
    one layer. `attention_bytes` are those of the attention blocks, which `attention-first` puts first."""

    layers: int
    attention_bytes: int


@dataclass(frozen=True, slots=True)
class RepackResult:
    """`bytes` counts tensor data, fillers not included. `aligned_*` count tensors on a 4096-byte boundary.

    `order_facts` is null for the orders that look at no layers. `removed` are files of an older checkpoint in the
    target that no new file took the place of.
    """

    source: str
    target: str
    align: str
    order: str
    order_facts: OrderFacts | None
    dry_run: bool
    bytes: int
    tensors: int
    files: list[RepackedFile]
    aligned_tensors: int
    aligned_bytes: int
    fillers: int
    every_adds_fillers: int
    refused_by: list[str]
    sidecars: list[str]
    skipped: list[SkippedFile]
    removed: list[str]
    seconds: float
    peak_anon_bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    path: str
    size_bytes: int
    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    extents_reason: str | None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`files`, `tensors` and `bytes` count what was looked at; `tensor_bytes` the data in it, without the headers;
    `digests_checked` the tensors whose bytes were hashed, of `digests_listed` in the manifest (null without one).
    Fillers are checked too, but count as bytes of files only.

    `unjudged` names what could not be read, so that an unreadable file is never called clean.
    """

    path: str
    findings: list[Finding]
    unjudged: list[str]
    files: int
    tensors: int
    bytes: int
    tensor_bytes: int
    digests_checked: int
    digests_listed: int | None
    digests_reason: str | None
    alignment: list[AlignmentCount]
    layout: list[VerifiedFile]
    seconds: float

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


@dataclass(frozen=True, slots=True)
class FailedRange:
    """Bytes of a file that could not be brought in, with the system's reason."""

    file: str
    offset_bytes: int
    length_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class WarmResult:
    """`bytes` is the checkpoint's size; `read_bytes` what this run brought in, of `planned_bytes`.

    Resident counts are null when unknown, with `residency_reason`; `residency_method` says how they were got:
    `mincore`, or `sampled` with its 95 % bound in bytes. `order_facts` is null for the orders that look at no layers.
    `complete` says that all of it was measured to be resident afterwards (sampled: every page that was probed); else
    `incomplete_reason` is `unreadable`, `budget`, `left-memory` (pages went while others came) or `unproved` (all was
    read, and the kernel does not tell what stayed).
    """

    path: str
    filesystem: str
    order: str
    order_facts: OrderFacts | None
    dry_run: bool
    bytes: int
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    residency_method: str | None
    residency_bound_bytes: int
    residency_reason: str | None
    planned_bytes: int
    read_bytes: int
    seconds: float
    cpu_seconds: float
    reader: str | None
    streams: int
    budget_bytes: int | None
    budget_reason: str
    complete: bool
    incomplete_reason: str | None
    failed: list[FailedRange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EvictResult:
    """The keys of WarmResult that make sense for taking pages out; `kept` says what stayed in memory, and why."""

    path: str
    dry_run: bool
    bytes: int
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    residency_method: str | None
    residency_bound_bytes: int
    residency_reason: str | None
    read_bytes: int
    seconds: float
    reader: str | None
    streams: int
    budget_bytes: int | None
    complete: bool
    failed: list[FailedRange]
    kept: list[SkippedFile]


@dataclass(frozen=True, slots=True)
class StatusFile:
    """`residency_map` has one share from 0 to 1 a cell, first bytes first; null unless residency is exact."""

    path: str
    size_bytes: int
    resident_bytes: int | None
    residency_method: str | None
    residency_bound_bytes: int
    residency_map: list[float] | None
    residency_reason: str | None
    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    extents_reason: str | None
    aligned_tensors: int
    aligned_bytes: int
    tensors: int


@dataclass(frozen=True, slots=True)
class StatusResult:
    path: str
    filesystem: str
    bytes: int
    resident_bytes: int | None
    residency_method: str | None
    residency_bound_bytes: int
    residency_reason: str | None
    tensors: int
    manifest: bool
    ignored: list[str]
    files: list[StatusFile]


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
    says why plain copies took over, null when they did not. `plain_bytes` were copied plainly. Where there are lanes,
    `overlap_share` is the share of the copying time in which two or more of them had a copy under way or waiting for
    its turn; whether that is bandwidth depends on the device.
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
