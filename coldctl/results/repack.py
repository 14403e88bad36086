"""What `repack` returns."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.results.facts import OrderFacts, SkippedFile


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
