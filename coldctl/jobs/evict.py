"""evict: take a checkpoint out of the page cache, prove it, and say what stayed and why."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coldctl.errors import from_os_error
from coldctl.events import NULL, Events
from coldctl.jobs.residency import Totals, open_measured
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.pages.evict import Evicted
from coldctl.loader.pages.evict import evict as evict_file
from coldctl.results.facts import SkippedFile
from coldctl.results.pages import EvictResult
from coldctl.units import format_size


@dataclass(frozen=True, slots=True)
class EvictOptions:
    """Only the shards of the checkpoint at `path` are touched, never a folder or the machine's whole cache."""

    path: str
    dry_run: bool = False


def evict(options: EvictOptions, events: Events = NULL) -> EvictResult:
    """Write dirty pages of the checkpoint to disk, drop its pages, and measure what is left.

    Success does not promise that pages stay away. Raises InputError, EnvironmentLacksError, StoppedError.
    """
    start_seconds = time.perf_counter()
    checkpoint, before = open_measured(options.path)
    evicted = {} if options.dry_run else _evict_all(checkpoint, events)
    after = Totals.of(result.residency for result in evicted.values()) if evicted else Totals.of(before.values())
    kept = [SkippedFile(name, _sentence(result)) for name, result in evicted.items() if result.reasons]
    return EvictResult(
        path=options.path,
        dry_run=options.dry_run,
        bytes=checkpoint.bytes,
        resident_before_bytes=Totals.of(before.values()).resident_bytes,
        resident_after_bytes=after.resident_bytes,
        residency_method=after.method,
        residency_bound_bytes=after.bound_bytes,
        residency_reason=after.reason,
        read_bytes=0,
        seconds=time.perf_counter() - start_seconds,
        reader=None,
        streams=0,
        budget_bytes=None,
        complete=after.resident_bytes == 0 and after.method == "mincore",
        failed=[],
        kept=kept,
    )


def _evict_all(checkpoint: Checkpoint, events: Events) -> dict[str, Evicted]:
    events.begin("evicting", checkpoint.bytes)
    evicted = {}
    for shard in checkpoint.shards:
        evicted[shard.name] = _evict_shard(shard)
        events.advance(shard.size_bytes)
        events.raise_if_stopped()
    events.end()
    return evicted


def _evict_shard(shard: Shard) -> Evicted:
    try:
        return evict_file(shard.path)
    except OSError as error:
        raise from_os_error(error, "evict", shard.path) from error


def _sentence(result: Evicted) -> str:
    stayed = "an unknown part" if result.stayed_bytes is None else format_size(result.stayed_bytes)
    return f"{stayed}: {'; '.join(result.reasons)}"
