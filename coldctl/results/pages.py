"""What `prewarm`, `evict` and `status` return."""

from __future__ import annotations

from dataclasses import dataclass, field

from coldctl.results.facts import FailedRange, OrderFacts, SkippedFile


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
