"""One cache state of a benchmark in detail: coldctl's best, the peers beside it, and where the seconds went."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from coldctl.report.bench_words import STAGES, stage_rate
from coldctl.report.escape import escape, escape_name
from coldctl.report.runs import leading
from coldctl.report.text.bench_phrases import bounds, peers_lead
from coldctl.report.text.phrases import count
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.bench import BenchResult, BenchRun, CacheState, Comparison, DeviceMemory
from coldctl.results.bench_runs import median_run
from coldctl.results.load import Stage
from coldctl.units import format_moment, format_rate, format_ratio, format_share, format_size


def cache_lines(result: BenchResult, cache: CacheState, style: Style) -> list[str]:
    """coldctl's best, or why none is named; ratios to peers; stages, bound, readiness, device of one median run."""
    lines = [cache, *_best(result, cache, style), *_peers(result, cache, style)]
    summary = leading(result, cache)
    run = None if summary is None else median_run(result.runs, summary.contender, cache)
    if summary is None or run is None:
        return [*lines, style.bad("  none of coldctl's own ways loaded")]
    bound = [f"  bound: {escape(summary.bound)}"] if summary.bound else []
    device = _device_memory(run.device_memory, style) if run.device_memory is not None else []
    return [*lines, *_run(run, result.file_bytes, style), *_stages(run), *bound, *_ready(run), *device]


def _best(result: BenchResult, cache: CacheState, style: Style) -> list[str]:
    named = [
        (best, style.good(escape_name(best.contender)) if best.contender else "not named") for best in result.bests
    ]
    return [f"  coldctl's best: {name}: {escape(best.reason)}" for best, name in named if best.cache == cache]


def _peers(result: BenchResult, cache: CacheState, style: Style) -> list[str]:
    return [_peer(each, style) for each in result.comparisons if each.cache == cache]


def _peer(each: Comparison, style: Style) -> str:
    peer, lead = escape_name(each.peer), peers_lead(each)
    fast = f"{each.ratio:.2f} times as fast as {peer}"
    ratio = f"  {escape_name(each.contender)}: {fast} ({bounds(each)}, round by round)"
    return f"{ratio}: {style.warning(f'{peer} was faster')}, {lead}" if lead else ratio


def _run(run: BenchRun, file_bytes: int, style: Style) -> Iterator[str]:
    """How the run went that the stages are of."""
    parts = [
        f"{escape_name(run.contender)}, median run",
        f"mode {escape(run.mode)}" if run.mode and run.mode != run.contender else "",
        _in_memory_before(run, file_bytes),
        count(run.reader_streams, "reader") if run.reader_streams else "",
        f"{format_size(run.direct_bytes)} past the page cache" if run.direct_bytes else "",
        "" if run.cpu_seconds is None else f"{format_moment(run.cpu_seconds)} of CPU",
    ]
    why = f": {escape(run.reason)}" if run.reason else ""
    yield "  " + ", ".join(part for part in parts if part) + why
    if run.copies is not None and run.copies.fallback is not None:
        yield style.warning("  plain copies:") + f" {escape(run.copies.fallback)}"
    yield from (style.warning("  note:") + f" {escape(note)}" for note in run.notes)


def _in_memory_before(run: BenchRun, file_bytes: int) -> str:
    if run.resident_before_bytes is None:
        return "unknown share in memory before"
    known = f"{format_share(run.resident_before_bytes, file_bytes)} in memory before"
    within_bytes = run.resident_bound_bytes
    return f"{known} (sampled, within {format_size(within_bytes)})" if within_bytes else known


def _stages(run: BenchRun) -> list[str]:
    if not run.stages:
        return ["  stages: not measured"]
    header = ("stage", "start", "took", "bytes", "rate", "(stages overlap, and need not add up)")
    return table([header, *map(_stage, run.stages)], right=(1, 2, 3, 4), indent="    ")


def _stage(stage: Stage) -> tuple[str, ...]:
    rate = stage_rate(stage)
    return (
        STAGES.get(stage.name, escape_name(stage.name)),
        format_moment(stage.start_seconds),
        format_moment(stage.seconds),
        format_size(stage.bytes) if stage.bytes > 0 else "",
        "" if rate is None else format_rate(rate),
        "",
    )


def _ready(run: BenchRun) -> list[str]:
    parts = []
    if run.first_layers_seconds is not None:
        parts.append(f"first layers {format_moment(run.first_layers_seconds)}")
    if ready := run.attention_ready_seconds:
        first, last = format_moment(ready[0]), format_moment(ready[-1])
        median = format_moment(statistics.median(ready))
        parts.append(f"attention of the first layer {first}, median {median}, of the last {last}")
    return [f"  ready: {'; '.join(parts)}"] if parts else []


def _device_memory(memory: DeviceMemory, style: Style) -> list[str]:
    before, after = format_size(memory.driver_free_before_bytes), format_size(memory.driver_free_after_bytes)
    peaks = f"{format_size(memory.allocated_peak_bytes)} allocated, {format_size(memory.reserved_peak_bytes)} reserved"
    fragmentation = f"fragmentation {format_ratio(memory.fragmentation_share)}"
    if memory.fragmented:
        fragmentation = style.bad(f"{fragmentation} of {format_size(memory.reserved_bytes)}: 15 % is too much")
    return [
        f"  device memory: {before} free before, {after} after, of {format_size(memory.driver_total_bytes)}",
        f"  torch: peak {peaks}; {fragmentation}; {escape(memory.allocator_settings, 60) or 'default settings'}",
    ]
