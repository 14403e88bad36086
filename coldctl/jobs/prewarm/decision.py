"""What a prewarm will read: the missing bytes in plan order, as far as the budget goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coldctl.errors import UsageError
from coldctl.jobs.residency import Measured, Totals
from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.budget import budget as find_budget
from coldctl.loader.order import Order
from coldctl.loader.plan import Segment
from coldctl.loader.syscalls import PAGE_BYTES
from coldctl.units import format_share, format_size, parse_share, parse_size

_DECIMAL = re.compile(r"\d*\.\d*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Decision:
    """`segments` are what the budget lets in of the `planned_bytes` that are missing; `fits` says that it is all."""

    segments: list[Segment]
    planned_bytes: int
    budget_bytes: int | None
    budget_reason: str

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.planned_bytes <= self.budget_bytes


def decide(checkpoint: Checkpoint, order: Order, budget: str, before: Measured) -> Decision:
    """The decision for a checkpoint whose residency is `before`. Raises UsageError for a budget that makes no sense."""
    budget_bytes, reason = _budget(budget, Totals.of(before.values()).resident_bytes or 0)
    missing = list(missing_segments(checkpoint, order, before))
    segments = missing if budget_bytes is None else list(_within(missing, budget_bytes))
    return Decision(segments, sum(segment.nbytes for segment in missing), budget_bytes, reason)


def missing_segments(checkpoint: Checkpoint, order: Order, before: Measured) -> Iterator[Segment]:
    """What has to be read, in order. A file whose map the kernel does not tell is gone over whole, unless every
    sampled page was there: pages that are resident cost next to nothing to go over."""
    ranges = {}
    for shard in checkpoint.shards:
        found = before[shard.name]
        if found.missing is not None:
            ranges[shard.name] = found.missing
        else:
            ranges[shard.name] = [] if found.resident_bytes == shard.size_bytes else [(0, shard.size_bytes)]
    yield from plan.only(plan.page_segments(checkpoint, order), ranges)


def _within(segments: Iterable[Segment], budget_bytes: int) -> Iterator[Segment]:
    """The head of `segments` that fits the budget: what loads first is what is warm. Memory holds whole pages, so each
    segment counts with the pages at its ends."""
    left_bytes = budget_bytes
    for segment in segments:
        before_bytes = segment.offset_bytes % PAGE_BYTES
        if left_bytes <= before_bytes:
            return
        kept = segment._replace(nbytes=min(segment.nbytes, left_bytes - before_bytes))
        yield kept
        left_bytes -= -(-(before_bytes + kept.nbytes) // PAGE_BYTES) * PAGE_BYTES


def _budget(text: str, resident_bytes: int) -> tuple[int | None, str]:
    """The budget in bytes (None for no bound) and the sentence that says where it comes from."""
    if text == "none":
        return None, ""
    if text == "auto":
        found = find_budget(resident_bytes=resident_bytes)
        return found.budget_bytes, found.reason
    if _is_share(text):
        share = parse_share(text)
        found = find_budget(resident_bytes=resident_bytes)
        return int(share * found.headroom_bytes), (
            f"{format_share(int(share * 1000), 1000)} of {format_size(found.headroom_bytes)} free by {found.limited_by}"
        )
    return _size(text), "as asked for"


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        also = "auto, none, a share such as 60%, or a size such as 40GiB"
        hint = f"{error.hint}; a budget is {also}" if error.hint else f"a budget is {also}"
        raise UsageError(f"invalid budget: {error.message}", hint=hint) from error


def _is_share(text: str) -> bool:
    """`60%` and `0.6` are shares; a bare whole number is a size, and so is all that has a unit."""
    return text.strip().endswith("%") or _DECIMAL.fullmatch(text.strip()) is not None
