"""A result that fills every part of the page: a sweep on a GPU, peers, a regression, fragmented memory, odd names.

Made by hand and by arithmetic, for tests of how it is drawn: nothing in it was measured.
"""

from __future__ import annotations

import random
import statistics
from itertools import product

from coldctl.report.text.phrases import count
from coldctl.results.bench import (
    BenchResult,
    BenchRun,
    Best,
    CacheState,
    Comparison,
    DeviceMemory,
    Limits,
    ResidencyMap,
    Segment,
    SegmentBlock,
    Summary,
    Timeline,
)
from coldctl.results.load import Span
from tests import bench_results as made

ROUNDS = 10
CACHES: tuple[CacheState, CacheState] = ("cold", "warm")
STREAMS = (1, 4)
CHUNKS_BYTES = (1 * made.MIB, 8 * made.MIB, 64 * made.MIB)
PEERS = {"safetensors": 2.1, "fastsafetensors": 1.3, "runai": 1.05}
FAILING = "instanttensor"
BEST = "direct, 4 streams, 8 MiB"
ODD_NAME = "odd\u202e\x1b[2J <b>&\"'</b>"

_SLOWER = {("ring", 1): 1.0, ("ring", 4): 1.02, ("direct", 1): 1.12, ("direct", 4): 0.97}
_CHUNK = {1 * made.MIB: 1.3, 8 * made.MIB: 1.0, 64 * made.MIB: 1.08}
_FLOOR: dict[CacheState, float] = {"cold": 3.3, "warm": 0.42}


def full_result() -> BenchResult:
    dice = random.Random(7)
    contenders = [
        made.contender(_name(*way), mode=way[0], streams=way[1], chunk_bytes=way[2])
        for way in product(("ring", "direct"), STREAMS, CHUNKS_BYTES)
    ]
    contenders += [made.peer(name, "1.2.3") for name in (*PEERS, FAILING, ODD_NAME)]
    medians = {
        (each.name, cache): _floor(each.name, cache) for each in contenders for cache in CACHES if each.name != FAILING
    }
    runs = [
        _run(name, cache, seconds * (1 + abs(dice.gauss(0, 0.03))), number)
        for number in range(ROUNDS)
        for (name, cache), seconds in medians.items()
    ]
    runs += [made.failed_run(FAILING, cache, "no kernel image for this device", round=0) for cache in CACHES]
    return made.gpu_result(
        path="/models/meta-llama/Llama-3.1-8B-Instruct",
        bytes=made.BYTES,
        rounds=ROUNDS,
        contenders=contenders,
        limits=_limits(),
        runs=runs,
        summaries=[_summary(name, cache, runs) for name, cache in medians]
        + [made.failed_summary(FAILING, cache, 1, "no kernel image for this device") for cache in CACHES],
        best=None,
        best_reason="no one way is the best cold and warm",
        bests=[
            Best("cold", BEST, "its slowest run is faster than the median of the next way"),
            Best("warm", None, "ring with 1 and with 4 streams overlap in their spreads"),
        ],
        comparisons=[
            Comparison(cache, BEST, name, ratio, ratio * 0.93, ratio * 1.06)
            for cache in CACHES
            for name, ratio in PEERS.items()
        ],
        timelines=[_timeline(BEST, cache, runs) for cache in CACHES],
        residency=[_residency(name, cache) for name, cache in medians if name in (BEST, *PEERS)],
        regressions=[
            made.regression("ring, 1 stream, 8 MiB", "cold"),
            made.regression(
                BEST,
                "warm",
                ratio=1.21,
                low=1.14,
                high=1.3,
                regressed=True,
                reason="14 % slower at least, and 10 % are allowed",
            ),
        ],
        notes=["the load average was 3.1 before the runs: something else was busy", f"{ODD_NAME} was skipped"],
        seconds=734.0,
    )


def _limits() -> Limits:
    reason = "the device has one engine for this direction"
    return made.gpu_limits(h2d_2_bytes_per_second=None, unmeasured={"h2d_2_bytes_per_second": reason})


def _name(mode: str, streams: int, chunk_bytes: int) -> str:
    return f"{mode}, {count(streams, 'stream')}, {chunk_bytes // made.MIB} MiB"


def _floor(name: str, cache: CacheState) -> float:
    if name in PEERS:
        return _FLOOR[cache] * PEERS[name]
    if name == ODD_NAME:
        return _FLOOR[cache] * 1.6
    mode, streams, chunk = name.split(", ")
    way = (mode, int(streams.split()[0]))
    return _FLOOR[cache] * _SLOWER[way] * _CHUNK[int(chunk.split()[0]) * made.MIB]


def _run(name: str, cache: CacheState, seconds: float, number: int) -> BenchRun:
    return made.gpu_run(
        name,
        cache,
        seconds,
        round=number,
        loaded_seconds=seconds * 0.97,
        device_memory=_device_memory(),
        device_samples=tuple(
            made.device_sample(
                float(i),
                used_bytes=round(made.GIB * min(9, 1 + 2.5 * i)),
                utilisation_share=0.1 * (i % 4),
                pcie_sent_bytes_per_second=None,
            )
            for i in range(8)
        ),
    )


def _device_memory() -> DeviceMemory:
    """Segments of 1 GiB, of which every third has a hole of 256 MiB."""
    whole = Segment("large", made.GIB, (SegmentBlock(0, made.GIB, "allocated"),))
    parts = (
        SegmentBlock(0, 700 * made.MIB, "allocated"),
        SegmentBlock(700 * made.MIB, 256 * made.MIB, "inactive"),
        SegmentBlock(956 * made.MIB, 68 * made.MIB, "pending"),
    )
    holed = Segment("large", made.GIB, parts)
    return made.device_memory(
        reserved_bytes=9 * made.GIB,
        inactive_split_bytes=3 * 256 * made.MIB,
        fragmentation_share=0.18,
        fragmented=True,
        segments=tuple(holed if i % 3 == 2 else whole for i in range(9)),
    )


def _summary(name: str, cache: CacheState, runs: list[BenchRun]) -> Summary:
    seconds = [run.seconds for run in runs if (run.contender, run.cache) == (name, cache) and run.seconds is not None]
    limit, rate = ("disk_direct", 2.5e9) if cache == "cold" else ("h2d_1", 50e9)
    share = made.BYTES / statistics.median(seconds) / rate
    bound = (
        "held by the disk: a faster one, or a warm cache, is all that helps"
        if cache == "cold"
        else "held by the processors that bring the bytes: try more streams, or larger chunks"
    )
    return made.summary(
        name, cache, seconds, limit=limit, limit_share=share, p90_seconds=sorted(seconds)[-2], bound=bound
    )


def _timeline(name: str, cache: CacheState, runs: list[BenchRun]) -> Timeline:
    chosen = sorted(
        (run for run in runs if (run.contender, run.cache) == (name, cache)), key=lambda run: run.seconds or 0
    )
    run = chosen[len(chosen) // 2]
    return made.timeline(
        name,
        cache,
        run.seconds or 1.0,
        loaded_seconds=run.loaded_seconds,
        first_layers_seconds=run.first_layers_seconds,
        spans=_spans(run.seconds or 1.0),
        device_samples=run.device_samples,
    )


def _spans(seconds: float, readers: int = 4, pieces: int = 60) -> tuple[Span, ...]:
    """Readers that take turns with the copies of what they read, and slow down in the middle."""
    dice = random.Random(11)
    first = seconds * 0.06
    spans = [
        Span("plan", "plan", 0.0, seconds * 0.01, 0),
        Span("pin", "pin", seconds * 0.01, seconds * 0.05, 0),
        Span("allocate", "allocate", seconds * 0.01, seconds * 0.02, 0),
    ]
    nbytes = made.BYTES // (readers * pieces)
    lanes = ("q", "k", "v", "rest")
    for reader in range(readers):
        begin = first
        step = (seconds * 0.92 - first) / pieces
        for piece in range(pieces):
            busy = step * (0.6 + 0.35 * dice.random()) * (0.55 if 20 < piece < 28 else 1)
            spans.append(Span(f"reader {reader + 1}", "read", begin, busy, nbytes))
            lane = lanes[(reader + piece) % 4]
            spans.append(Span(f"copy {lane}", "copy", begin + step, step * 0.3, nbytes))
            begin += step
    spans.append(Span("verify", "verify", seconds * 0.97, seconds * 0.03, made.BYTES))
    return tuple(spans)


def _residency(name: str, cache: CacheState) -> ResidencyMap:
    empty, full = (0.0,) * 64, (1.0,) * 64
    partly = tuple(max(0.0, 1 - i / 40) for i in range(64))
    after = full if name == "safetensors" else partly if name in PEERS else empty
    return ResidencyMap(name, cache, empty if cache == "cold" else full, after if cache == "cold" else full)
