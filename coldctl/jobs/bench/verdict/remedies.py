"""What to try against what holds a load: the second half of the sentence in `bound`."""

from __future__ import annotations

from coldctl.jobs.bench.verdict.evidence import Evidence
from coldctl.jobs.bench.verdict.yardstick import BUS, DISK, reads_directly
from coldctl.units import MIB

ENOUGH_CHUNK_BYTES = 8 * MIB
"""From here on the 5 to 7 µs that the submission of a copy takes are 4 % at most of a chunk's time on the bus."""

_WITHOUT_STREAMS = ("map", "per-tensor")


def past_limit(name: str, load: Evidence) -> str:
    """At the limit called `name`."""
    if name in BUS:
        return "fewer bytes (a smaller dtype), or a faster link"
    return past_disk(load) if name in DISK else past_copying(load)


def past_disk(load: Evidence) -> str:
    return f"a faster disk, or {_cache_first(load)}"


def _cache_first(load: Evidence) -> str:
    if not load.is_own:
        return "the page cache warmed first (coldctl prewarm) if it reads through that"
    if load.contender.mode in ("direct", "gds"):
        return "mode auto with the page cache warmed first (coldctl prewarm), which this mode passes by"
    return "the page cache warmed first (coldctl prewarm)"


def past_copying(load: Evidence) -> str:
    """Where the host copies out of the page cache."""
    if not load.is_own or load.run.mode in ("map", "mapped"):
        return "more CPUs, or faster ones"
    return "mode mapped has the device read the page cache itself" if load.on_device else "mode map copies nothing"


def past_busy_cpus(load: Evidence) -> str:
    if not load.comes_off_disk:
        return past_copying(load)
    direct_may_help = load.is_own and not reads_directly(load.run) and load.limits.disk_direct_bytes_per_second
    return "more CPUs, or mode direct, which copies less" if direct_may_help else "more CPUs, or faster ones"


def past_touching(load: Evidence) -> str:
    """Where most of the time goes by after the loader returned. A peer may have mapped cold files, and read nothing."""
    if load.is_own or load.run.cache == "warm":
        return "a faster loader helps little"
    return "if that is what brings the pages, warm the page cache first (coldctl prewarm)"


def past_reading(load: Evidence, *, at_limit: bool | None) -> str:
    """Where most of the time goes into reads; `at_limit`: as fast as what they are measured by, null where nothing was
    measured."""
    if not load.comes_off_disk:
        return past_copying(load)
    if at_limit:
        return past_disk(load)
    depth, streams = load.limits.disk_depth, load.run.reader_streams
    streams_are_readers = not load.on_device and load.run.mode not in _WITHOUT_STREAMS
    if reads_directly(load.run) and streams_are_readers and depth and streams and streams < depth:
        return f"the disk gave most to {depth} reads at once, and this was {streams} (--streams {depth})"
    if at_limit is None:
        return _cache_first(load)
    return f"{_cache_first(load)}; the disk gave more when it was measured alone, so look for what else was busy"


def past_slow_copies(load: Evidence, limit_share: float | None) -> str:
    """Where the bus is busy; `limit_share`: at which share of what pinned copies give."""
    ring, copies = load.run.ring, load.run.copies
    if load.run.mode == "per-tensor":
        return "mode ring copies out of pinned memory"
    if copies and copies.fallback:
        return copies.fallback
    if limit_share and ring and ring.slot_bytes < ENOUGH_CHUNK_BYTES:
        return f"larger chunks (--chunk {ENOUGH_CHUNK_BYTES // MIB}MiB)"
    return past_limit(BUS[0], load)
