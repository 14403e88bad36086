"""The device's memory around the leading loads, and what the driver said meanwhile."""

from __future__ import annotations

from coldctl.report.html.device_samples import curves
from coldctl.report.html.markup import NOTHING, Safe, element
from coldctl.report.html.section import section
from coldctl.report.html.segments import segment_map
from coldctl.report.html.table import data_table
from coldctl.report.runs import cache_states, leading
from coldctl.results.bench import BenchResult, CacheState, DeviceMemory
from coldctl.results.bench_runs import median_run
from coldctl.units import format_ratio, format_size


def device_section(result: BenchResult) -> Safe:
    parts = [part for cache in cache_states(result) for part in _of_cache(result, cache)]
    if not parts:
        return NOTHING
    lead = "Of the leading way's median run. The driver counts all processes on the device, torch its own allocations."
    return section("Device memory", lead, *parts)


def _of_cache(result: BenchResult, cache: CacheState) -> list[Safe]:
    lead = leading(result, cache)
    run = median_run(result.runs, lead.contender, cache) if lead else None
    if run is None or not (run.device_memory or run.device_samples):
        return []
    memory = run.device_memory
    return [
        element("h3", f"{run.contender}, {cache}, round {run.round + 1}"),
        *([_fragmentation(memory), segment_map(memory), _figures(memory), _settings(memory)] if memory else []),
        *curves(run.device_samples),
    ]


def _fragmentation(memory: DeviceMemory) -> Safe:
    share = f"{format_ratio(memory.fragmentation_share)} of what torch reserved is inactive inside split blocks"
    if memory.fragmented:
        return element("p", element("b", "▲ Fragmented: "), f"{share}.", class_="alarm")
    return element("p", f"Not fragmented: {share}.")


def _figures(memory: DeviceMemory) -> Safe:
    total = memory.driver_total_bytes
    used = {
        "driver, used before": total - memory.driver_free_before_bytes,
        "driver, used after": total - memory.driver_free_after_bytes,
        "driver, in all": total,
        "torch allocated, peak": memory.allocated_peak_bytes,
        "torch reserved, peak": memory.reserved_peak_bytes,
        "torch allocated, after": memory.allocated_bytes,
        "torch reserved, after": memory.reserved_bytes,
        "inactive in split blocks": memory.inactive_split_bytes,
    }
    rows = [(name, format_size(nbytes)) for name, nbytes in used.items()]
    return data_table("Device memory around the load", ("memory", "size"), rows, "data narrow")


def _settings(memory: DeviceMemory) -> Safe:
    return element("p", "Allocator settings: ", element("code", memory.allocator_settings or "defaults"))
