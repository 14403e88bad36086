"""The limit of copies in host memory: blocks that no cache of the CPU holds, copied on as many threads as pay."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from coldctl.events import Events
from coldctl.loader.host.budget import budget
from coldctl.units import KIB, MIB

LEAST_BLOCK_BYTES = 64 * MIB
SECONDS_EACH = 0.2


def measure_memcpy(events: Events) -> float | None:
    """Bytes copied per second, read and written once each, by the best of 1, 2, 4, … threads up to the CPUs.

    None where less than four times the block is free: the block, its copy, and as much again for all others. Raises
    StoppedError.
    """
    nbytes = block_bytes()
    if 4 * nbytes > budget().headroom_bytes:
        return None
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return max(_rate(source, target, threads, events) for threads in thread_counts(len(os.sched_getaffinity(0))))


def thread_counts(cpus: int) -> list[int]:
    """1, 2, 4, … below `cpus`, and `cpus`."""
    return [*(1 << power for power in range((cpus - 1).bit_length())), cpus]


def block_bytes(root: str = "/") -> int:
    """Twice what all last-level caches of the machine hold together, and 64 MiB at least. `root` is where /sys is."""
    caches = {}
    for index in Path(root, "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        try:
            level, size, shared = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
            caches[int(level), shared] = int(size.removesuffix("K")) * KIB
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in caches), default=0)
    return max(LEAST_BLOCK_BYTES, 2 * sum(size for (level, _), size in caches.items() if level == last))


def _rate(source: np.ndarray, target: np.ndarray, threads: int, events: Events) -> float:
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        copied_bytes, begun_seconds = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begun_seconds) < SECONDS_EACH:
            events.raise_if_stopped()
            list(pool.map(lambda part: np.copyto(*part), parts))
            copied_bytes += source.nbytes
    return copied_bytes / seconds
