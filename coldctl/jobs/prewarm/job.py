"""prewarm: bring a checkpoint's pages into the page cache, only what is missing, within a memory budget."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from coldctl.errors import RefusedError, UsageError
from coldctl.events import NULL, Events
from coldctl.jobs.prewarm.decision import Decision, decide, missing_segments
from coldctl.jobs.prewarm.warming import NOTHING, Warmed, warm
from coldctl.jobs.residency import Measured, Totals, measure_again, open_measured
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.mounts import filesystem_of, is_network
from coldctl.loader.order import ORDERS, Order, order_facts
from coldctl.loader.pages.warm import choose_reader
from coldctl.loader.plan import Segment
from coldctl.loader.pool import default_streams_cap
from coldctl.results.pages import WarmResult
from coldctl.units import format_size

_NETWORK_STREAMS_CAP = 16
_LITTLE_SHARE = 20


@dataclass(frozen=True, slots=True)
class PrewarmOptions:
    """`budget` bounds the bytes that are newly read: `auto` (from the machine and its cgroups), `none`, a share of the
    headroom (`60%`), or a size (`40GiB`). `jobs` caps the streams. `all_or_nothing` refuses to begin when not all of it
    fits."""

    path: str
    order: Order = "name"
    budget: str = "auto"
    jobs: int | None = None
    all_or_nothing: bool = False
    dry_run: bool = False


def prewarm(options: PrewarmOptions, events: Events = NULL) -> WarmResult:
    """Warm the checkpoint at `options.path` in plan order, and say how much of it is resident before and after.

    Pages that are resident already are left alone. Success does not promise that pages stay: the kernel may drop
    them at any time. Raises UsageError, InputError, RefusedError (`all_or_nothing`), StoppedError; ranges that
    cannot be read are in `failed`, and all others are still warmed.
    """
    start_seconds, start_cpu_seconds = time.perf_counter(), time.process_time()
    _check(options)
    checkpoint, before = open_measured(options.path)
    decision = decide(checkpoint, options.order, options.budget, before)
    if options.all_or_nothing and not decision.fits:
        raise _does_not_fit(decision)
    reader = choose_reader(checkpoint.shards[0].path)
    run = _Run(options, checkpoint, decision)
    warmed, after = NOTHING, before
    if decision.segments and not options.dry_run:
        _forget_headers(checkpoint, before)
        cap = _streams_cap(options, checkpoint)
        warmed = warm(decision.segments, checkpoint, reader, cap, events, exactly=not decision.fits)
        after = measure_again(checkpoint)
        if lost := run.lost(warmed, after):
            warmed = warmed.then(warm(lost, checkpoint, reader, cap, events, exactly=False))
            after = measure_again(checkpoint)
    totals = Totals.of(after.values())
    incomplete_reason = run.why_incomplete(warmed, totals)
    return WarmResult(
        path=options.path,
        filesystem=filesystem_of(checkpoint.shards[0].path),
        order=options.order,
        order_facts=order_facts(options.order, checkpoint.tensors()),
        dry_run=options.dry_run,
        bytes=checkpoint.bytes,
        resident_before_bytes=Totals.of(before.values()).resident_bytes,
        resident_after_bytes=totals.resident_bytes,
        residency_method=totals.method,
        residency_bound_bytes=totals.bound_bytes,
        residency_reason=totals.reason,
        planned_bytes=decision.planned_bytes,
        read_bytes=warmed.read_bytes,
        seconds=time.perf_counter() - start_seconds,
        cpu_seconds=time.process_time() - start_cpu_seconds,
        reader=reader.name,
        streams=warmed.streams,
        budget_bytes=decision.budget_bytes,
        budget_reason=decision.budget_reason,
        complete=incomplete_reason is None,
        incomplete_reason=incomplete_reason,
        failed=warmed.failed,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    options: PrewarmOptions
    checkpoint: Checkpoint
    decision: Decision

    def lost(self, warmed: Warmed, after: Measured) -> list[Segment]:
        """What left memory while the rest was read, if it is little: some kernels reclaim on their own (DAMON), and
        take a few pages that were idle memory a moment before. If it is much, memory is short, and reading it again
        would push out the rest."""
        if warmed.failed or not self.decision.fits:
            return []
        if not all(residency.method == "mincore" for residency in after.values()):
            return []
        missing = list(missing_segments(self.checkpoint, self.options.order, after))
        most_bytes = self.checkpoint.bytes // _LITTLE_SHARE
        if self.decision.budget_bytes is not None:
            most_bytes = min(most_bytes, self.decision.budget_bytes - warmed.read_bytes)
        return missing if sum(segment.nbytes for segment in missing) <= most_bytes else []

    def why_incomplete(self, warmed: Warmed, after: Totals) -> str | None:
        """Why the checkpoint cannot be called warm; None when it is, or (in a dry run) would be."""
        if warmed.failed:
            return "unreadable"
        if not self.decision.fits:
            return "budget"
        if self.options.dry_run:
            return None
        if after.resident_bytes is None:
            return "unproved"
        return "left-memory" if after.resident_bytes < self.checkpoint.bytes else None


def _does_not_fit(decision: Decision) -> RefusedError:
    return RefusedError(
        f"{format_size(decision.planned_bytes)} would have to be read, and the budget is "
        f"{format_size(decision.budget_bytes or 0)} ({decision.budget_reason})",
        hint="leave --all-or-nothing out to warm the first part, or give more memory",
    )


def _check(options: PrewarmOptions) -> None:
    if options.order not in ORDERS:
        raise UsageError(f"no such order: {options.order!r}", hint=f"one of {', '.join(ORDERS)}")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError("--jobs must be at least 1")


def _forget_headers(checkpoint: Checkpoint, before: Measured) -> None:
    """Drop what reading the header brought of files that were cold at their start. Pages that lie there already would
    have the kernel read the first MiBs of each file in single pages instead of large folios."""
    for shard in checkpoint.shards:
        missing = before[shard.name].missing
        if missing and missing[0][0] == 0:
            with shard.source.open() as opened:
                os.posix_fadvise(opened.fd, 0, missing[0][1], os.POSIX_FADV_DONTNEED)


def _streams_cap(options: PrewarmOptions, checkpoint: Checkpoint) -> int:
    if options.jobs is not None:
        return options.jobs
    return _NETWORK_STREAMS_CAP if is_network(filesystem_of(checkpoint.shards[0].path)) else default_streams_cap()
