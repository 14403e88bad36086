"""Results of `bench` made by hand, for tests of what is done with them: whole by default, each part replaceable.

The checkpoint has 8,000,000,000 bytes, so that a load of 4 s went at 2 GB/s.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from coldctl.results.bench import (
    BenchResult,
    BenchRun,
    Best,
    CacheState,
    Comparison,
    Contender,
    DeviceFacts,
    DeviceMemory,
    DeviceSample,
    HostFacts,
    HostMemory,
    Limits,
    Regression,
    ResidencyMap,
    Segment,
    SegmentBlock,
    Summary,
    Timeline,
)
from coldctl.results.load import CopyFacts, RingFacts, Span, Stage

GIB = 1 << 30
MIB = 1 << 20
BYTES = 8_000_000_000

_BLANK_RUN = BenchRun(
    contender="buffered",
    cache="cold",
    round=0,
    mode=None,
    error=None,
    seconds=None,
    loaded_seconds=None,
    cpu_seconds=None,
    bytes=0,
    bytes_per_second=None,
    tensors=0,
    content_sum=None,
    resident_before_bytes=None,
    resident_after_bytes=None,
    resident_bound_bytes=None,
    stages=(),
    first_layers_seconds=None,
    attention_ready_seconds=(),
    reason=None,
    reader_streams=None,
    direct_bytes=None,
    ring=None,
    copies=None,
    notes=(),
    host_memory=None,
    device_memory=None,
    device_samples=(),
)

_LIMITS = Limits(
    disk_direct_bytes_per_second=2.5e9,
    disk_buffered_bytes_per_second=2.2e9,
    memcpy_bytes_per_second=10e9,
    h2d_1_bytes_per_second=None,
    h2d_2_bytes_per_second=None,
    h2d_4_bytes_per_second=None,
    disk_depth=8,
    unmeasured={
        "h2d_1": "the device is cpu",
        "h2d_2": "the device is cpu",
        "h2d_4": "the device is cpu",
    },
)

_HOST = HostFacts(
    cpu="Xeon 8480C",
    cpus=16,
    memory_bytes=128 * GIB,
    kernel="6.18.5",
    virtual=None,
    filesystem="ext4",
    mount_point="/data",
    mount_options="rw,noatime",
    block_device="nvme0n1",
    read_ahead_bytes=128 << 10,
    transparent_huge_pages="madvise",
    load_average=0.5,
    device=None,
    versions={"coldctl": "0.1.0", "python": "3.12.3", "torch": "2.13.0", "fastsafetensors": None},
)


def contender(name: str = "buffered", **changes: Any) -> Contender:
    """One of coldctl's own ways, with nothing asked for but the mode of its name."""
    return replace(Contender(name, "coldctl", name, None, None, None, None), **changes)


def peer(name: str = "safetensors", version: str | None = "0.6.2") -> Contender:
    return Contender(name, "peer", None, None, None, None, version)


def host(**changes: Any) -> HostFacts:
    return replace(_HOST, **changes)


def device_facts(**changes: Any) -> DeviceFacts:
    return replace(DeviceFacts("NVIDIA H200", "570.86", "12.8", 140 * GIB, 5, 16), **changes)


def limits(**changes: Any) -> Limits:
    """Disk 2.5 GB/s direct and 2.2 buffered, memcpy 10 GB/s, no bus: the limits of a machine without a GPU."""
    return replace(_LIMITS, **changes)


def gpu_limits(**changes: Any) -> Limits:
    """`limits`, with a bus of 50 GB/s however many streams copy."""
    bus = {f"h2d_{streams}_bytes_per_second": 50e9 for streams in (1, 2, 4)}
    return limits(**{**bus, "unmeasured": {}, **changes})


def host_stages(seconds: float) -> tuple[Stage, ...]:
    """Stages of a load into host memory that took `seconds`."""
    return (
        Stage("import_torch", -2.0, 1.5, 0),
        Stage("plan", 0.0, 0.02, 0),
        Stage("allocate", 0.02, 0.08, BYTES),
        Stage("read", 0.1, seconds - 0.1, BYTES),
    )


def gpu_stages(seconds: float) -> tuple[Stage, ...]:
    """Stages of a load onto a GPU that took `seconds`: reading and copying overlap."""
    return (
        Stage("import_torch", -4.0, 3.0, 0),
        Stage("cuda_context", -1.0, 0.5, 0),
        Stage("plan", 0.0, 0.02, 0),
        Stage("allocate", 0.02, 0.01, BYTES),
        Stage("pin", 0.03, 0.07, 64 * MIB),
        Stage("read", 0.1, seconds - 0.2, BYTES),
        Stage("h2d", 0.2, seconds - 0.2, BYTES),
    )


def run(name: str = "buffered", cache: CacheState = "cold", seconds: float = 4.0, **changes: Any) -> BenchRun:
    """A run into host memory that succeeded."""
    return replace(
        _BLANK_RUN,
        contender=name,
        cache=cache,
        **{
            "mode": name,
            "seconds": seconds,
            "loaded_seconds": seconds,
            "cpu_seconds": 1.0,
            "bytes": BYTES,
            "bytes_per_second": BYTES / seconds,
            "tensors": 291,
            "content_sum": "00112233445566ff",
            "resident_before_bytes": 0 if cache == "cold" else BYTES,
            "resident_after_bytes": BYTES,
            "resident_bound_bytes": 0,
            "stages": host_stages(seconds),
            "reader_streams": 8,
            "direct_bytes": 0,
            "host_memory": HostMemory(BYTES + 400 * MIB, 300 * MIB),
            **changes,
        },
    )


def failed_run(name: str, cache: CacheState = "cold", error: str = "it crashed", **changes: Any) -> BenchRun:
    """A run that failed: nothing of it was measured."""
    return replace(_BLANK_RUN, contender=name, cache=cache, error=error, **changes)


def device_memory(**changes: Any) -> DeviceMemory:
    """A GPU's memory with 1 GiB reserved, of which 5 % is inactive inside split blocks."""
    blocks = (SegmentBlock(0, 960 * MIB, "allocated"), SegmentBlock(960 * MIB, 64 * MIB, "inactive"))
    default = DeviceMemory(
        driver_total_bytes=140 * GIB,
        driver_free_before_bytes=139 * GIB,
        driver_free_after_bytes=131 * GIB,
        allocated_peak_bytes=BYTES,
        reserved_peak_bytes=8 * GIB,
        allocated_bytes=BYTES,
        reserved_bytes=GIB,
        inactive_split_bytes=GIB // 20,
        fragmentation_share=0.05,
        fragmented=False,
        allocator_settings="expandable_segments:False",
        segments=(Segment("large", GIB, blocks),),
    )
    return replace(default, **changes)


def device_sample(seconds: float, **changes: Any) -> DeviceSample:
    return replace(DeviceSample(seconds, 9 * GIB, 0.5, 0.25, 40e9, 1e9, 300.0), **changes)


def gpu_run(name: str = "ring", cache: CacheState = "cold", seconds: float = 4.0, **changes: Any) -> BenchRun:
    """A run onto a GPU that succeeded."""
    return run(
        name,
        cache,
        seconds,
        **{
            "stages": gpu_stages(seconds),
            "first_layers_seconds": 0.5,
            "attention_ready_seconds": (0.4, 0.8, 1.2),
            "reason": "pinned memory can be had",
            "ring": RingFacts(8, 8 * MIB, "registered", 0),
            "copies": CopyFacts(1, BYTES, 2.0, 4e9, 50e9, 0, None, None),
            "host_memory": HostMemory(800 * MIB, 700 * MIB),
            "device_memory": device_memory(),
            "device_samples": (device_sample(0.0), device_sample(1.0), device_sample(2.0)),
            **changes,
        },
    )


def summary(name: str, cache: CacheState, seconds: list[float], **changes: Any) -> Summary:
    """The summary of runs that took `seconds`, measured by the direct disk of `limits` (cold) or by memcpy (warm)."""
    median = statistics.median(seconds)
    limit, limit_rate = ("disk_direct", 2.5e9) if cache == "cold" else ("memcpy", 10e9)
    default = Summary(
        contender=name,
        cache=cache,
        runs=len(seconds),
        failed=0,
        error=None,
        median_seconds=median,
        min_seconds=min(seconds),
        max_seconds=max(seconds),
        p90_seconds=None,
        p99_seconds=None,
        bytes_per_second=BYTES / median,
        limit=limit,
        limit_share=BYTES / median / limit_rate,
        bound=f"held by the {'disk' if cache == 'cold' else 'memory'}: nothing to gain",
    )
    return replace(default, **changes)


def failed_summary(name: str, cache: CacheState, failed: int = 5, error: str = "it crashed") -> Summary:
    return Summary(name, cache, 0, failed, error, None, None, None, None, None, None, None, None, None)


def regression(name: str = "buffered", cache: CacheState = "cold", **changes: Any) -> Regression:
    default = Regression(name, cache, 1.02, 0.97, 1.08, False, "within what is allowed (10 %)")
    return replace(default, **changes)


def spans(seconds: float) -> tuple[Span, ...]:
    """A plan, then two readers side by side from 0.1 s on, each with half of the bytes in one piece."""
    half = BYTES // 2
    return (
        Span("plan", "plan", 0.0, 0.02, 0),
        Span("reader 1", "lm_head.weight", 0.1, seconds - 0.1, half),
        Span("reader 2", "model.norm.weight", 0.1, seconds - 0.1, half),
    )


def timeline(name: str = "buffered", cache: CacheState = "cold", seconds: float = 4.0, **changes: Any) -> Timeline:
    return replace(Timeline(name, cache, seconds, seconds, None, spans(seconds), ()), **changes)


_SECONDS: dict[tuple[str, CacheState], list[float]] = {
    ("buffered", "cold"): [4.0, 3.9, 4.1, 4.0, 4.2],
    ("direct", "cold"): [4.4, 4.3, 4.5, 4.4, 4.6],
    ("safetensors", "cold"): [5.0, 4.9, 5.1, 5.0, 5.2],
    ("buffered", "warm"): [1.0, 0.9, 1.1, 1.0, 1.2],
    ("direct", "warm"): [4.4, 4.3, 4.5, 4.4, 4.6],
    ("safetensors", "warm"): [1.0, 0.9, 1.2, 1.0, 1.1],
}


def result(**changes: Any) -> BenchResult:
    """A whole result of a machine without a GPU: two ways and a peer, cold and warm, five rounds."""
    default = BenchResult(
        path="/data/llama",
        device="cpu",
        bytes=BYTES,
        tensors=291,
        files=4,
        file_bytes=BYTES + 4096,
        rounds=5,
        verify=False,
        first_layers=None,
        memory_fraction=None,
        max_split_size_bytes=None,
        host=host(),
        contenders=[contender("buffered"), contender("direct"), peer("safetensors")],
        limits=limits(),
        runs=[
            run(name, cache, seconds, round=number)
            for (name, cache), each in _SECONDS.items()
            for number, seconds in enumerate(each)
        ],
        summaries=[summary(name, cache, each) for (name, cache), each in _SECONDS.items()],
        best="buffered",
        best_reason="the fastest cold, and the spreads do not touch",
        bests=[
            Best("cold", "buffered", "the spreads do not touch"),
            Best("warm", "buffered", "the spreads do not touch"),
        ],
        comparisons=[
            Comparison("cold", "buffered", "safetensors", 1.25, 1.2, 1.3),
            Comparison("warm", "buffered", "safetensors", 1.0, 0.95, 1.1),
        ],
        first_layers_seconds=None,
        attention_ready_seconds=[],
        timelines=[timeline("buffered", "cold", 4.0), timeline("buffered", "warm", 1.0)],
        residency=[
            ResidencyMap("buffered", "cold", (0.0, 0.0), (1.0, 1.0)),
            ResidencyMap("buffered", "warm", (1.0, 1.0), (1.0, 1.0)),
        ],
        regressions=None,
        notes=[],
        seconds=200.0,
    )
    return replace(default, **changes)


def gpu_result(**changes: Any) -> BenchResult:
    """A whole result of a machine with a GPU: two ways and a peer that fails, cold and warm, one round."""
    copying = Span("copy q", "model.embed_tokens.weight", 0.2, 3.8, BYTES)
    watched: dict[str, Any] = {
        "first_layers_seconds": 0.5,
        "spans": (*spans(4.0), copying),
        "device_samples": (device_sample(0.0), device_sample(1.0), device_sample(2.0)),
    }
    names: tuple[CacheState, CacheState] = ("cold", "warm")
    return result(
        **{
            "device": "cuda:0",
            "rounds": 1,
            "host": host(device=device_facts()),
            "contenders": [
                contender("ring"),
                contender("ring, 4 streams", mode="ring", streams=4),
                peer("runai", "0.15.0"),
            ],
            "limits": gpu_limits(),
            "runs": [
                each
                for cache in names
                for each in (
                    gpu_run("ring", cache, 4.0),
                    gpu_run("ring, 4 streams", cache, 5.0, mode="ring"),
                    failed_run("runai", cache, "no kernel image"),
                )
            ],
            "summaries": [
                each
                for cache in names
                for each in (
                    summary("ring", cache, [4.0]),
                    summary("ring, 4 streams", cache, [5.0]),
                    failed_summary("runai", cache, 1, "no kernel image"),
                )
            ],
            "best": None,
            "best_reason": "one round does not tell",
            "bests": [Best(cache, None, "one round does not tell") for cache in names],
            "comparisons": [],
            "first_layers_seconds": 0.5,
            "attention_ready_seconds": [0.4, 0.8, 1.2],
            "timelines": [timeline("ring", cache, **watched) for cache in names],
            "residency": [],
            **changes,
        }
    )
