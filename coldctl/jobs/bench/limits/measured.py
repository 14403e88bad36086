"""What the machine gives: measured before the rounds and after them, and the better of both counts."""

from __future__ import annotations

from coldctl.events import Events
from coldctl.jobs.bench.limits.bus import STREAMS, Bus
from coldctl.jobs.bench.limits.disk import DiskRates, measure_disk, unmeasured_disk
from coldctl.jobs.bench.limits.memory import measure_memcpy
from coldctl.jobs.bench.processes.process import Deadline
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.results.bench import CacheState, Limits
from coldctl.units import format_duration, format_rate, format_size

_RATES = ("disk_direct", "disk_buffered", "memcpy", *(f"h2d_{streams}" for streams in STREAMS))

_START_SECONDS = 120.0
_TIMES_SLOWER = 20
_UNMEASURED_BYTES_PER_SECOND = 100e6


def measure_limits(checkpoint: Checkpoint, bus: Bus | None, caches: tuple[CacheState, ...], events: Events) -> Limits:
    """One measurement of every limit that there is. `bus` is null for loads into host memory.

    Where no cold loads are asked for the files are left in the page cache, and so the disk is not measured. Raises
    StoppedError.
    """
    disk = _disk(checkpoint, caches, events)
    memcpy = measure_memcpy(events)
    unmeasured = dict(disk.unmeasured)
    if memcpy is None:
        unmeasured["memcpy"] = "too little memory is free"
    h2d = bus.bytes_per_second if bus else {}
    reason = (bus and bus.reason) or "loads go to host memory"
    unmeasured |= {f"h2d_{streams}": reason for streams in STREAMS if streams not in h2d}
    return Limits(
        disk_direct_bytes_per_second=disk.direct,
        disk_buffered_bytes_per_second=disk.buffered,
        memcpy_bytes_per_second=memcpy,
        h2d_1_bytes_per_second=h2d.get(1),
        h2d_2_bytes_per_second=h2d.get(2),
        h2d_4_bytes_per_second=h2d.get(4),
        disk_depth=disk.depth,
        unmeasured=unmeasured,
    )


def better(one: Limits, other: Limits) -> Limits:
    """The higher of both for every limit, with the reasons of those that neither has."""
    rates = {f"{name}_bytes_per_second": _higher(one, other, name) for name in _RATES}
    direct = [each for each in (one, other) if each.disk_direct_bytes_per_second is not None]
    fastest = max(direct, key=lambda each: each.disk_direct_bytes_per_second or 0.0, default=one)
    reasons = one.unmeasured | other.unmeasured
    lacking = {name: reasons[name] for name in _RATES if rates[f"{name}_bytes_per_second"] is None}
    return Limits(**rates, disk_depth=fastest.disk_depth, unmeasured=lacking)


def deadline(nbytes: int, limits: Limits) -> Deadline:
    """What a load of `nbytes` may take before it is taken to hang: 20 times what the disk takes in the slower of the
    ways in which it was measured (mappings of cold files are that slow on some), and 2 minutes to start."""
    measured = (limits.disk_direct_bytes_per_second, limits.disk_buffered_bytes_per_second)
    known = [rate for rate in measured if rate]
    rate = min(known, default=_UNMEASURED_BYTES_PER_SECOND)
    seconds = _START_SECONDS + _TIMES_SLOWER * nbytes / rate
    of_disk = f"the {'measured' if known else 'supposed'} {format_rate(rate)} of the disk"
    reason = (
        f"{format_duration(seconds)} ({format_duration(_START_SECONDS)} to start, and {_TIMES_SLOWER} times what "
        f"{format_size(nbytes)} take at {of_disk})"
    )
    return Deadline(seconds, reason)


def _disk(checkpoint: Checkpoint, caches: tuple[CacheState, ...], events: Events) -> DiskRates:
    if "cold" not in caches:
        return unmeasured_disk("no cold loads were asked for, and the files are to stay in the page cache")
    return measure_disk(checkpoint, events)


def _higher(one: Limits, other: Limits, name: str) -> float | None:
    rates: list[float | None] = [getattr(each, f"{name}_bytes_per_second") for each in (one, other)]
    return max((rate for rate in rates if rate is not None), default=None)
