"""prewarm: bring a checkpoint's pages into the page cache, only what is missing, within a memory budget."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from coldctl.errors import RefusedError, UsageError
from coldctl.events import NULL, Events
from coldctl.jobs.residency import Measured, Totals, measure_again, open_measured
from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.budget import budget as find_budget
from coldctl.loader.host.mounts import filesystem_of, is_network
from coldctl.loader.order import ORDERS, Order, order_facts
from coldctl.loader.pages.pieces import Piece, pieces
from coldctl.loader.pages.warm import WINDOW_BYTES, PageReader, choose_reader
from coldctl.loader.plan import Segment
from coldctl.loader.pool import Worker, default_streams_cap, share_out
from coldctl.loader.source import LastOpened, OpenLocalFile
from coldctl.results import FailedRange, WarmResult
from coldctl.units import format_share, format_size, parse_share, parse_size

_NETWORK_STREAMS_CAP = 16
_DECIMAL = re.compile(r"\d*\.\d*", re.ASCII)


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
    resident_before = Totals.of(before.values())
    budget_bytes, budget_reason = _budget(options.budget, resident_before.resident_bytes or 0)
    missing = list(_missing(checkpoint, options.order, before))
    planned_bytes = sum(segment.nbytes for segment in missing)
    fits = budget_bytes is None or planned_bytes <= budget_bytes
    if options.all_or_nothing and not fits:
        raise RefusedError(
            f"{format_size(planned_bytes)} would have to be read, and the budget is {format_size(budget_bytes or 0)} "
            f"({budget_reason})",
            hint="leave --all-or-nothing out to warm the first part, or give more memory",
        )
    reader = choose_reader(checkpoint.shards[0].path)
    warmed = _Warmed(0, 0, [])
    if not options.dry_run:
        _forget_headers(checkpoint, before)
        segments = missing if budget_bytes is None else list(_within(missing, budget_bytes))
        warmed = _warm(segments, checkpoint, reader, _streams_cap(options, checkpoint), events)
    after = Totals.of(measure_again(checkpoint).values()) if warmed.read_bytes else resident_before
    incomplete_reason = _why_incomplete(options, warmed, after, checkpoint.bytes, fits=fits)
    return WarmResult(
        path=options.path,
        filesystem=filesystem_of(checkpoint.shards[0].path),
        order=options.order,
        order_facts=order_facts(options.order, checkpoint.tensors()),
        dry_run=options.dry_run,
        bytes=checkpoint.bytes,
        resident_before_bytes=resident_before.resident_bytes,
        resident_after_bytes=after.resident_bytes,
        residency_method=after.method,
        residency_bound_bytes=after.bound_bytes,
        residency_reason=after.reason,
        planned_bytes=planned_bytes,
        read_bytes=warmed.read_bytes,
        seconds=time.perf_counter() - start_seconds,
        cpu_seconds=time.process_time() - start_cpu_seconds,
        reader=reader.name,
        streams=warmed.streams,
        budget_bytes=budget_bytes,
        budget_reason=budget_reason,
        complete=incomplete_reason is None,
        incomplete_reason=incomplete_reason,
        failed=warmed.failed,
    )


@dataclass(frozen=True, slots=True)
class _Warmed:
    read_bytes: int
    streams: int
    failed: list[FailedRange]


def _why_incomplete(
    options: PrewarmOptions, warmed: _Warmed, after: Totals, size_bytes: int, *, fits: bool
) -> str | None:
    """Why the checkpoint cannot be called warm; None when it is, or (in a dry run) would be as far as can be told."""
    if warmed.failed:
        return "unreadable"
    if not fits:
        return "budget"
    if options.dry_run:
        return None
    if after.resident_bytes is None:
        return "unproved"
    return "left-memory" if after.resident_bytes + after.bound_bytes < size_bytes else None


def _check(options: PrewarmOptions) -> None:
    if options.order not in ORDERS:
        raise UsageError(f"no such order: {options.order!r}", hint=f"one of {', '.join(ORDERS)}")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError("--jobs must be at least 1")


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
    return parse_size(text), "as asked for"


def _is_share(text: str) -> bool:
    """`60%` and `0.6` are shares; a bare whole number is a size, and so is all that has a unit."""
    return text.strip().endswith("%") or _DECIMAL.fullmatch(text.strip()) is not None


def _missing(checkpoint: Checkpoint, order: Order, before: Measured) -> Iterator[Segment]:
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


def _forget_headers(checkpoint: Checkpoint, before: Measured) -> None:
    """Drop what reading the header brought of files that were cold at their start. Pages that lie there already would
    have the kernel read the first MiBs of each file in single pages instead of large folios."""
    for shard in checkpoint.shards:
        missing = before[shard.name].missing
        if missing and missing[0][0] == 0:
            with shard.source.open() as opened:
                os.posix_fadvise(opened.fd, 0, missing[0][1], os.POSIX_FADV_DONTNEED)


def _within(segments: Iterable[Segment], budget_bytes: int) -> Iterator[Segment]:
    """The head of `segments` that fits the budget: what loads first is what is warm."""
    left_bytes = budget_bytes
    for segment in segments:
        if left_bytes <= 0:
            return
        yield segment._replace(nbytes=min(segment.nbytes, left_bytes))
        left_bytes -= segment.nbytes


def _streams_cap(options: PrewarmOptions, checkpoint: Checkpoint) -> int:
    if options.jobs is not None:
        return options.jobs
    return _NETWORK_STREAMS_CAP if is_network(filesystem_of(checkpoint.shards[0].path)) else default_streams_cap()


def _warm(segments: list[Segment], checkpoint: Checkpoint, reader: PageReader, cap: int, events: Events) -> _Warmed:
    files = {shard.name: shard.source for shard in checkpoint.shards}
    failed: list[FailedRange] = []
    lock = threading.Lock()

    def warm(piece: Piece, opened: LastOpened[OpenLocalFile]) -> Iterator[int]:
        fd = opened.get(piece.segment.source).fd
        read = reader.read_exactly if piece.exact else reader.read
        for window in plan.cut(piece.segment, WINDOW_BYTES):
            for offset_bytes, length_bytes, error in read(fd, window.offset_bytes, window.nbytes):
                with lock:
                    failed.append(FailedRange(window.source.name, offset_bytes, length_bytes, error))
            yield window.nbytes

    @contextmanager
    def make_worker() -> Iterator[Worker[tuple[Piece, ...]]]:
        with LastOpened(lambda source: files[source.name].open(), checked=False) as opened:
            yield lambda group: (nbytes for piece in group for nbytes in warm(piece, opened))

    if not segments:
        return _Warmed(0, 0, [])
    events.begin("warming", sum(segment.nbytes for segment in segments))
    streams = share_out(pieces(segments, reader.reach_bytes), make_worker, events, first=1, cap=cap)
    events.end()
    failed = _merged(failed)
    failed_bytes = sum(range_.length_bytes for range_ in failed)
    return _Warmed(sum(segment.nbytes for segment in segments) - failed_bytes, streams, failed)


def _merged(failed: list[FailedRange]) -> list[FailedRange]:
    """In file order, with neighbours that failed for the same reason as one range."""
    merged: list[FailedRange] = []
    for found in sorted(failed, key=lambda range_: (range_.file, range_.offset_bytes)):
        last = merged[-1] if merged else None
        if last and (last.file, last.error) == (found.file, found.error) and _end(last) == found.offset_bytes:
            merged[-1] = replace(last, length_bytes=last.length_bytes + found.length_bytes)
        else:
            merged.append(found)
    return merged


def _end(failed: FailedRange) -> int:
    return failed.offset_bytes + failed.length_bytes
