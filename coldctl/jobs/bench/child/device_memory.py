"""A GPU's memory around a load, as the driver and torch's caching allocator see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coldctl.errors import UsageError
from coldctl.results.bench import DeviceMemory, Segment, SegmentBlock

FRAGMENTED_SHARE = 0.15


def limit_memory(device: str, fraction: float) -> None:
    """Let torch allocate no more than `fraction` (above 0, up to 1) of the memory of `device`.

    It bounds what the allocator holds from the driver: a load that needs more ends with torch's out of memory. It does
    not bound the CUDA context, what libraries allocate by themselves, or other processes. Raises UsageError for any
    other fraction.
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"{fraction:g} is no fraction of a device's memory", hint="write it as 80% or 0.8")
    import torch

    torch.cuda.set_per_process_memory_fraction(float(fraction), _index(device))


def measured(device: str) -> Callable[[], DeviceMemory]:
    """Begin to measure the memory of `device` now; the function that is returned ends it, and says what was found.

    Peaks count from here. It makes the CUDA context if there is none yet: clock that before. The end waits for the
    device, and takes a few milliseconds for each 10,000 blocks.
    """
    import torch

    index = _index(device)
    free_before_bytes, _ = torch.cuda.mem_get_info(index)
    torch.cuda.reset_peak_memory_stats(index)

    def end() -> DeviceMemory:
        torch.cuda.synchronize(index)
        free_after_bytes, total_bytes = torch.cuda.mem_get_info(index)
        settings, segments = _allocator(index)
        return device_memory(
            torch.cuda.memory_stats(index),
            total_bytes=total_bytes,
            free_before_bytes=free_before_bytes,
            free_after_bytes=free_after_bytes,
            settings=settings,
            segments=segments,
        )

    return end


def _index(device: str) -> int:
    import torch

    index = torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)


def _allocator(index: int) -> tuple[str, tuple[Segment, ...]]:
    """What it says it runs with, and its map. Only torch's own allocator has one: `cudaMallocAsync` refuses to tell."""
    import torch

    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        return settings_text(backend, {}), ()
    snapshot = torch.cuda.memory._snapshot()
    return settings_text(backend, snapshot["allocator_settings"]), segment_map(snapshot["segments"], index)


def device_memory(
    stats: Mapping[str, int],
    *,
    total_bytes: int,
    free_before_bytes: int,
    free_after_bytes: int,
    settings: str,
    segments: tuple[Segment, ...],
) -> DeviceMemory:
    """What `torch.cuda.memory_stats()` and the driver said after a load, with the share that is fragmented.

    That share is of the bytes in free blocks between used ones: they cannot go back to the driver, and serve only
    requests that fit. torch counts none in expandable segments, which can shrink in the middle.
    """
    reserved_bytes = stats["reserved_bytes.all.current"]
    inactive_split_bytes = stats["inactive_split_bytes.all.current"]
    share = inactive_split_bytes / reserved_bytes if reserved_bytes else 0.0
    return DeviceMemory(
        driver_total_bytes=total_bytes,
        driver_free_before_bytes=free_before_bytes,
        driver_free_after_bytes=free_after_bytes,
        allocated_peak_bytes=stats["allocated_bytes.all.peak"],
        reserved_peak_bytes=stats["reserved_bytes.all.peak"],
        allocated_bytes=stats["allocated_bytes.all.current"],
        reserved_bytes=reserved_bytes,
        inactive_split_bytes=inactive_split_bytes,
        fragmentation_share=share,
        fragmented=share >= FRAGMENTED_SHARE,
        allocator_settings=settings,
        segments=segments,
    )


def segment_map(segments: Iterable[Mapping[str, Any]], index: int) -> tuple[Segment, ...]:
    """The segments of device `index`, in address order, from those of `torch.cuda.memory_snapshot()`, which has all."""
    ours = sorted((each for each in segments if each["device"] == index), key=lambda each: int(each["address"]))
    return tuple(Segment(each["segment_type"], each["total_size"], _blocks(each["blocks"])) for each in ours)


def _blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[SegmentBlock, ...]:
    """Blocks come in address order and without gaps; not every version of torch tells their addresses."""
    placed: list[SegmentBlock] = []
    offset_bytes = 0
    for block in blocks:
        placed.append(SegmentBlock(offset_bytes, block["size"], _state(block["state"])))
        offset_bytes += block["size"]
    return tuple(placed)


def _state(state: str) -> str:
    """The third state, freed but still used by a stream, is `active_pending_free`; torch's documentation has another
    name for it."""
    return {"active_allocated": "allocated", "inactive": "inactive"}.get(state, "pending")


def settings_text(backend: str, settings: Mapping[str, Any]) -> str:
    """`backend=native, max_split_size=-1, …`: the allocator's own names and values (-1 stands for no limit)."""
    known = {"backend": backend, **settings}
    return ", ".join(f"{name}={value}" for name, value in known.items() if not _says_nothing(value))


def _says_nothing(value: object) -> bool:
    """An empty text, and a table of zeros: `roundup_power2_divisions` where nothing is rounded."""
    return value == "" or (isinstance(value, dict) and not any(value.values()))
