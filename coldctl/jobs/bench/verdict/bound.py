"""What holds a load, and what to try: one sentence, from the stages of its median run and the limits beside it.

The explanations are tried in an order, and the first that the figures support is the one that is given.
"""

from __future__ import annotations

import math

from coldctl.jobs.bench.verdict.evidence import Evidence, Rates
from coldctl.jobs.bench.verdict.remedies import (
    past_busy_cpus,
    past_limit,
    past_reading,
    past_slow_copies,
    past_touching,
)
from coldctl.jobs.bench.verdict.yardstick import BUS, DISK, fastest, rate_of, reads_directly
from coldctl.results.bench import BenchRun, Contender, Limits
from coldctl.units import MIB, format_moment, format_ratio, format_size

AT_LIMIT_SHARE = 0.85
"""From here on a load is at its limit: the fastest loader known reaches 87 % of the bus, since a pipeline takes time to
fill and to run dry. A limit that a load beats by as much was measured too low to be one."""

BUSY_SHARE = 0.85
"""From here on CPUs, or the bus, count as busy all the while: the same allowance for a beginning and an end."""

MOST_SHARE = 0.5
"""A stage that nothing overlaps holds a load from here on: doing all else in no time would not even halve it."""

SMALL_TENSOR_BYTES = 1 * MIB
"""Under this, one copy for each tensor loses a quarter and more of a bus of 55 GB/s to the 5 to 7 µs that it takes to
submit it; and Python takes longer than that."""

_GIVES = {
    "disk_direct": "what the disk gives to direct reads",
    "disk_buffered": "what the disk gives through the page cache",
    "memcpy": "what copying from memory to memory gives",
    "h2d_1": "what pinned copies on 1 stream give",
    "h2d_2": "what pinned copies on 2 streams give",
    "h2d_4": "what pinned copies on 4 streams give",
}
_WHAT = {"disk_direct": "the disk", "disk_buffered": "the disk", "memcpy": "memory"}
_BEFORE_THE_LOAD = {
    "import_torch": "import torch",
    "import_peer": "import of the library",
    "cuda_context": "the CUDA context",
}


def bound_of(contender: Contender, run: BenchRun, limits: Limits, tried: Rates, *, device: str, cpus: int) -> str:
    """The sentence for a run that succeeded, the one of `contender` in the middle of its cache state.

    `tried` has what coldctl's own modes gave there, `device` is `cpu` or a GPU, and `cpus` counts those that the
    process may use. The sentence says nothing that was not measured, and "not known" where the figures show nothing.
    """
    load = Evidence(contender, run, limits, tried, device != "cpu", cpus)
    held_by = next(filter(None, (explain(load) for explain in _EXPLANATIONS)), None) or _not_known(load)
    start_up = _start_up(load)
    return f"{start_up}; the load itself: {held_by}" if start_up else held_by


def _at_limit(load: Evidence) -> str | None:
    limit = load.yardstick.limit
    if limit is None or load.bytes_per_second < AT_LIMIT_SHARE * limit.bytes_per_second:
        return None
    share = load.bytes_per_second / limit.bytes_per_second
    of_limit = f"{format_ratio(share)} of {_GIVES[limit.name]}"
    if share > 1 / AT_LIMIT_SHARE:
        return f"not known: {of_limit}, so that was measured too low to be a limit; run bench again"
    return f"{_WHAT.get(limit.name, 'the bus')}: {of_limit}; {past_limit(limit.name, load)}"


def _way_of_reading(load: Evidence) -> str | None:
    """At what the disk gives to reads of its kind, where it gives clearly more to reads of the other kind."""
    direct, buffered = (rate_of(load.limits, name) for name in DISK)
    if not (load.is_own and load.run.cache == "cold" and load.run.direct_bytes is not None and direct and buffered):
        return None
    if reads_directly(load.run):
        name, own, other, others = "disk_direct", direct, buffered, "reads through the page cache"
        mode = "ring" if load.on_device else "buffered"
    else:
        name, own, other, others = "disk_buffered", buffered, direct, "direct reads"
        mode = "direct"
    if AT_LIMIT_SHARE * other <= own or load.bytes_per_second < AT_LIMIT_SHARE * own:
        return None
    if load.tried.get(mode, math.inf) <= load.bytes_per_second:
        return None
    share = format_ratio(load.bytes_per_second / own)
    gave = f"{others} gave {other / own:.2f} times as much when that was measured (mode {mode})"
    return f"the way of reading: {share} of {_GIVES[name]}; {gave}"


def _one_stage(load: Evidence) -> str | None:
    """Stages that nothing overlaps: one of them takes most of the time."""
    told = {
        "plan": f"for {load.run.tensors:,} tensors; it grows with their number, not with their bytes",
        "allocate": "a process that keeps its memory pays for it once"
        if load.on_device
        else "mode map needs no memory",
        "pin": "it is the same for every checkpoint; mode per-tensor pins nothing",
        "verify": "leave it out where the checkpoint was verified before (coldctl verify)",
        "touch": past_touching(load),
    }
    name = max(told, key=load.share)
    if load.share(name) < MOST_SHARE:
        return None
    called = {"plan": "headers and plan", "touch": "touching every byte once the loader had returned"}.get(name, name)
    return f"{called}: {format_ratio(load.share(name))} of the load; {told[name]}"


def _small_tensors(load: Evidence) -> str | None:
    tensors, nbytes = load.run.tensors, load.run.bytes
    if load.run.mode != "per-tensor" or not tensors or nbytes >= SMALL_TENSOR_BYTES * tensors:
        return None
    each = f"{format_size(nbytes // tensors)} and {format_moment(load.seconds / tensors)} each on average"
    mode = "ring" if load.on_device else "buffered"
    return f"small tensors: {tensors:,} one by one, {each}; mode {mode} takes many at once"


def _copying_to_device(load: Evidence) -> str | None:
    if load.share("h2d") < BUSY_SHARE:
        return None
    bus = fastest(load.limits, BUS)
    share = load.stage_limit_share("h2d", bus)
    slow = past_slow_copies(load, share) if share is None or share < AT_LIMIT_SHARE else past_limit(BUS[0], load)
    at = f", at {format_ratio(share)} of {_GIVES[bus.name]}" if bus and share else ""
    return f"the bus: copying for {format_ratio(load.share('h2d'))} of the load{at}; {slow}"


def _cpus(load: Evidence) -> str | None:
    used_seconds = load.run.cpu_seconds
    if not used_seconds or used_seconds < BUSY_SHARE * load.cpus * load.seconds:
        return None
    return f"the CPUs: {used_seconds / load.seconds:.1f} of {load.cpus} busy all the while; {past_busy_cpus(load)}"


def _reading(load: Evidence) -> str | None:
    """Most of the time went by in reads, and with no copy to the device under way.

    There a read's time may hold its wait for a slot, or its copy, so what copies took is taken off.
    """
    alone = load.share("read") - load.share("h2d")
    if alone < MOST_SHARE:
        return None
    limit = load.yardstick.limit
    share = None if load.on_device else load.stage_limit_share("read", limit)
    at = f", at {format_ratio(share)} of {_GIVES[limit.name]}" if limit and share else ""
    alone_text = format_ratio(alone) + (" of the load with no copy under way" if load.on_device else " of the load")
    source = "the disk" if load.comes_off_disk else "the page cache"
    remedy = past_reading(load, at_limit=None if share is None else share >= AT_LIMIT_SHARE)
    return f"reading from {source}: {alone_text}{at}; {remedy}"


def _not_known(load: Evidence) -> str:
    limit, unmeasured = load.yardstick
    share = format_ratio(load.bytes_per_second / limit.bytes_per_second) if limit else ""
    of_limit = f"{share} of {_GIVES[limit.name]}" if limit else "there is no limit to measure it by"
    missing = f" ({', '.join(unmeasured)} not measured)" if unmeasured else ""
    if load.is_own:
        return f"not known: {of_limit}{missing}, and no stage stands out; the timeline of --report may show more"
    return f"not known: {of_limit}{missing}, and its stages were not measured; coldctl's own ways show what can be had"


def _start_up(load: Evidence) -> str | None:
    """What comes before the load, where it takes longer than the load."""
    parts = {told: seconds for name, told in _BEFORE_THE_LOAD.items() if (seconds := load.stage_seconds(name))}
    total_seconds = sum(parts.values())
    if total_seconds <= load.seconds:
        return None
    listed = ", ".join(f"{told} {format_moment(seconds)}" for told, seconds in parts.items())
    took = f"{format_moment(total_seconds)} before the first byte ({listed})"
    return f"start-up: {took}, the load {format_moment(load.seconds)}; a process that is kept pays for it once"


_EXPLANATIONS = (_at_limit, _way_of_reading, _one_stage, _small_tensors, _copying_to_device, _cpus, _reading)
