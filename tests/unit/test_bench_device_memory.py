"""coldctl.jobs.bench.child.device_memory: what torch's allocator says, read as it says it.

The records have the form of `torch.cuda.memory_stats()` and `torch.cuda.memory._snapshot()` of torch 2.10 to 2.13
(torch/cuda/memory.py and torch/csrc/cuda/Module.cpp); sizes and states are those of a load of one tensor at a time.
(tests/gpu/test_bench_memory.py asks a real allocator.)
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from coldctl.errors import UsageError
from coldctl.jobs.bench.child.device_memory import device_memory, limit_memory, segment_map, settings_text
from coldctl.results.bench import DeviceMemory, Segment, SegmentBlock

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

SMALL = {
    "device": 0,
    "address": 140370157502464,
    "total_size": 2 * MIB,
    "allocated_size": 512,
    "active_size": 512,
    "requested_size": 8,
    "stream": 0,
    "segment_type": "small",
    "segment_pool_id": (0, 0),
    "is_expandable": False,
    "frames": [],
    "blocks": [
        {"address": 140370157502464, "size": 512, "requested_size": 8, "state": "active_allocated", "frames": []},
        {"address": 140370157502976, "size": 2 * MIB - 512, "requested_size": 0, "state": "inactive", "frames": []},
    ],
}
LARGE = {
    "device": 0,
    "address": 139657371189248,
    "total_size": 20 * MIB,
    "allocated_size": 12 * MIB,
    "active_size": 15 * MIB,
    "requested_size": 15 * MIB,
    "stream": 0,
    "segment_type": "large",
    "segment_pool_id": (0, 0),
    "is_expandable": False,
    "frames": [],
    "blocks": [
        {"size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_allocated", "frames": []},
        {"size": 5 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
        {"size": 8 * MIB, "requested_size": 8 * MIB, "state": "active_allocated", "frames": []},
        {"size": 3 * MIB, "requested_size": 3 * MIB, "state": "active_pending_free", "frames": []},
    ],
}
WHOLE_AND_FREE = {
    **LARGE,
    "address": 139657400000000,
    "allocated_size": 0,
    "active_size": 0,
    "blocks": [{"size": 20 * MIB, "requested_size": 0, "state": "inactive", "frames": []}],
}
ELSEWHERE = {**LARGE, "device": 1}
SNAPSHOT: list[dict[str, Any]] = [ELSEWHERE, SMALL, WHOLE_AND_FREE, LARGE]

# memory_stats() of device 0 in that state: 2 + 20 + 20 MiB reserved, the free blocks of split segments inactive.
STATS = {
    "allocated_bytes.all.current": 12 * MIB + 512,
    "allocated_bytes.all.peak": 32 * MIB,
    "reserved_bytes.all.current": 42 * MIB,
    "reserved_bytes.all.peak": 64 * MIB,
    "active_bytes.all.current": 15 * MIB + 512,
    "inactive_split_bytes.all.current": 5 * MIB + (2 * MIB - 512),
    "inactive_split_bytes.large_pool.current": 5 * MIB,
    "inactive_split_bytes.small_pool.current": 2 * MIB - 512,
    "max_split_size": -1,
    "num_alloc_retries": 0,
    "num_ooms": 0,
}


def found(stats: dict[str, int], segments: tuple[Segment, ...] = ()) -> DeviceMemory:
    return device_memory(
        stats,
        total_bytes=80 * GIB,
        free_before_bytes=79 * GIB,
        free_after_bytes=60 * GIB,
        settings="backend=native",
        segments=segments,
    )


def fragmented(inactive_split_bytes: int, reserved_bytes: int) -> DeviceMemory:
    changed = {
        "inactive_split_bytes.all.current": inactive_split_bytes,
        "reserved_bytes.all.current": reserved_bytes,
    }
    return found({**STATS, **changed})


def test_driver_and_allocator_are_told_apart() -> None:
    memory = found(STATS)
    assert memory.driver_total_bytes == 80 * GIB
    assert memory.driver_free_before_bytes - memory.driver_free_after_bytes == 19 * GIB
    assert (memory.allocated_peak_bytes, memory.reserved_peak_bytes) == (33554432, 67108864)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (12583424, 44040192)
    assert memory.inactive_split_bytes == 7339520
    assert memory.allocator_settings == "backend=native"


@pytest.mark.parametrize(
    ("inactive_split_bytes", "reserved_bytes", "share", "alarm"),
    [
        (149 * MIB, 1000 * MIB, 0.149, False),
        (150 * MIB, 1000 * MIB, 0.15, True),
        (150 * MIB - 512, 1000 * MIB, 0.15 - 512 / (1000 * MIB), False),
        (3 * MIB, 20 * MIB, 0.15, True),
        (20 * MIB, 20 * MIB, 1.0, True),
        (0, 20 * MIB, 0.0, False),
        (0, 0, 0.0, False),
    ],
)
def test_the_alarm_goes_off_from_15_per_cent_on(
    inactive_split_bytes: int, reserved_bytes: int, share: float, alarm: bool
) -> None:
    memory = fragmented(inactive_split_bytes, reserved_bytes)
    assert memory.fragmentation_share == pytest.approx(share, rel=1e-12)
    assert memory.fragmented is alarm


def test_the_map_has_the_segments_of_one_device_in_address_order() -> None:
    assert segment_map(SNAPSHOT, 0) == (
        Segment(
            "large",
            20 * MIB,
            (
                SegmentBlock(0, 4 * MIB, "allocated"),
                SegmentBlock(4 * MIB, 5 * MIB, "inactive"),
                SegmentBlock(9 * MIB, 8 * MIB, "allocated"),
                SegmentBlock(17 * MIB, 3 * MIB, "pending"),
            ),
        ),
        Segment("large", 20 * MIB, (SegmentBlock(0, 20 * MIB, "inactive"),)),
        Segment("small", 2 * MIB, (SegmentBlock(0, 512, "allocated"), SegmentBlock(512, 2 * MIB - 512, "inactive"))),
    )
    assert len(segment_map(SNAPSHOT, 1)) == 1
    assert segment_map(SNAPSHOT, 2) == segment_map([], 0) == ()


def test_the_map_and_the_counters_agree() -> None:
    """As torch's own tests define it: inactive split bytes are in the free blocks of segments with several blocks."""
    segments = segment_map(SNAPSHOT, 0)
    memory = found(STATS, segments)
    blocks = [(len(segment.blocks), block) for segment in segments for block in segment.blocks]
    split = sum(block.size_bytes for count, block in blocks if count > 1 and block.state == "inactive")
    assert memory.segments == segments
    assert sum(segment.size_bytes for segment in segments) == memory.reserved_bytes
    assert sum(block.size_bytes for _, block in blocks if block.state == "allocated") == memory.allocated_bytes
    assert split == memory.inactive_split_bytes
    assert memory.fragmentation_share == pytest.approx(7339520 / 44040192)
    assert memory.fragmented


def test_the_name_of_a_waiting_block_in_the_documentation_is_read_too() -> None:
    blocks = [{"size": 512, "state": "active_awaiting_free"}]
    assert segment_map([{**LARGE, "blocks": blocks}], 0)[0].blocks == (SegmentBlock(0, 512, "pending"),)


def test_settings_are_the_allocators_own_words_without_those_that_say_nothing() -> None:
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
        "max_split_size": 512 * MIB,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "roundup_power2_divisions": {"1": 0, "2": 0},
    }
    assert settings_text("native", settings) == (
        "backend=native, PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512, max_split_size=536870912, "
        "garbage_collection_threshold=0.0, expandable_segments=False"
    )
    assert settings_text("native", {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}) == (
        "backend=native, max_split_size=-1"
    )
    assert settings_text("native", {"roundup_power2_divisions": {"256": 0, "512": 8}}).endswith("'512': 8}")
    assert settings_text("cudaMallocAsync", {}) == "backend=cudaMallocAsync"


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, math.nan, math.inf])
def test_a_fraction_outside_the_memory_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="no fraction of a device's memory"):
        limit_memory("cuda:0", fraction)
