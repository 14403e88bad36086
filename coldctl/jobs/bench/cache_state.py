"""The page cache before a run: made cold or warm, and measured to be that, or the reason why it cannot be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from coldctl.errors import from_os_error
from coldctl.events import Events
from coldctl.jobs.bench.counted import Counted
from coldctl.jobs.residency import Totals, measure_all
from coldctl.loader.host.budget import budget
from coldctl.loader.pages.evict import evict
from coldctl.loader.pages.warm import WINDOW_BYTES, FailedRanges, PageReader, choose_reader
from coldctl.loader.pool import default_streams_cap, share_out
from coldctl.loader.regular import opened
from coldctl.results.bench import CacheState
from coldctl.units import format_share, format_size

COLD_SHARE = 0.01
WARM_SHARE = 0.99

_PAUSES_SECONDS = (0.0, 0.1, 0.5)
_READS = 2


@dataclass(frozen=True, slots=True)
class Prepared:
    """`lacks` is null when the state was had, and else says why not. `resident_bytes` is null when it is unknown, and
    may be off by `bound_bytes`: over 0 where pages were sampled."""

    resident_bytes: int | None
    bound_bytes: int | None
    lacks: str | None

    @staticmethod
    def of(totals: Totals, lacks: str | None = None) -> Prepared:
        known = totals.resident_bytes is not None
        return Prepared(totals.resident_bytes, totals.bound_bytes if known else None, lacks)


def prepare(cache: CacheState, files: Sequence[str], events: Events) -> Prepared:
    """Bring `files` into the state `cache`. Raises StoppedError, and the ColdctlError of a file that does not open."""
    try:
        return make_cold(files, events) if cache == "cold" else make_warm(files, events)
    except OSError as error:
        raise from_os_error(error, "open", error.filename or files[0]) from error


def residency_of(files: Sequence[str]) -> Totals:
    """What of `files` is in the page cache now, all of them together."""
    return Totals.of(measure_all({path: path for path in files}).values())


def make_cold(files: Sequence[str], events: Events) -> Prepared:
    """Evict, and prove that less than 1 % stayed, at the far end of what the measurement may be off by.

    Pages on their way to the kernel's LRU lists cannot be dropped yet, so it is tried a few times.
    """
    size_bytes = _size_bytes(files)
    for pause_seconds in _PAUSES_SECONDS:
        time.sleep(pause_seconds)
        evicted = [evict(path) for path in _until_stopped(files, events)]
        totals = Totals.of(each.residency for each in evicted)
        resident_bytes = totals.resident_bytes
        if resident_bytes is None:
            return _unknown(totals)
        if resident_bytes + totals.bound_bytes < COLD_SHARE * size_bytes:
            return Prepared.of(totals)
    reasons = dict.fromkeys(reason for each in evicted for reason in each.reasons)
    if not reasons:
        return _uncertain(totals)
    stayed = format_share(resident_bytes or 0, size_bytes)
    return Prepared.of(totals, f"{stayed} stays in the page cache ({'; '.join(reasons)})")


def make_warm(files: Sequence[str], events: Events) -> Prepared:
    """Read what is missing, and prove that 99 % and more is there, at the near end of what the measurement may be off
    by. Nothing is read that memory has no room for."""
    size_bytes = _size_bytes(files)
    for reads_left in range(_READS, -1, -1):
        totals = residency_of(files)
        resident_bytes = totals.resident_bytes
        if resident_bytes is None:
            return _unknown(totals)
        if resident_bytes - totals.bound_bytes >= WARM_SHARE * size_bytes:
            return Prepared.of(totals)
        lacks = _lacks_room(resident_bytes, size_bytes)
        if reads_left and not lacks:
            lacks = _read_through(files, events)
        if lacks:
            return Prepared.of(totals, lacks)
    if resident_bytes == size_bytes:
        return _uncertain(totals)
    stayed = format_share(resident_bytes or 0, size_bytes)
    return Prepared.of(totals, f"only {stayed} is in the page cache after all of it was read")


def _size_bytes(files: Sequence[str]) -> int:
    return sum(os.stat(path).st_size for path in files)


def _until_stopped(files: Sequence[str], events: Events) -> Iterator[str]:
    for path in files:
        events.raise_if_stopped()
        yield path


def _unknown(totals: Totals) -> Prepared:
    return Prepared.of(totals, f"what is in the page cache cannot be known ({totals.reason})")


def _uncertain(totals: Totals) -> Prepared:
    bound = format_size(totals.bound_bytes)
    return Prepared.of(totals, f"what is in the page cache is known give or take {bound} ({totals.reason})")


def _lacks_room(resident_bytes: int, size_bytes: int) -> str | None:
    """Why the page cache has no room for what is missing; null when it has."""
    found, missing_bytes = budget(resident_bytes=resident_bytes), size_bytes - resident_bytes
    if missing_bytes <= found.headroom_bytes:
        return None
    missing, free = format_size(missing_bytes), format_size(found.headroom_bytes)
    return f"{missing} are not in memory, and {free} are free by {found.limited_by}"


def _read_through(files: Sequence[str], events: Events) -> str | None:
    """Read all of it into the page cache, where it may be already. Null, or what could not be read."""
    for path in files:
        if failed := _read_file(path, choose_reader(path), events):
            offset_bytes, _, error = min(failed)
            return f"{os.path.basename(path)} cannot be read at byte {offset_bytes}: {error}"
    return None


def _read_file(path: str, reader: PageReader, events: Events) -> FailedRanges:
    failed: FailedRanges = []
    with opened(path) as (fd, status):

        def read(offset_bytes: int) -> Iterator[int]:
            nbytes = min(WINDOW_BYTES, status.st_size - offset_bytes)
            failed.extend(reader.read(fd, offset_bytes, nbytes))
            yield nbytes

        windows = range(0, status.st_size, WINDOW_BYTES)
        share_out(windows, lambda: nullcontext(read), Counted(events), first=1, cap=default_streams_cap())
    return failed
