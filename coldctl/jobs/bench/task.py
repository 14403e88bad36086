"""What a child process is asked to load, and what it found: one JSON document on its stdin, one on its stdout."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.results.bench import DeviceMemory, HostMemory
from coldctl.results.load import CopyFacts, RingFacts, Span, Stage


@dataclass(frozen=True, slots=True)
class Task:
    """One load. `peer` is null for coldctl's own loader; `files` are the checkpoint's shards, in order.

    `mode` is one of HOST_MODES or DEVICE_MODES; null in `streams`, `chunk_bytes` and `order` is the loader's default.
    `spans` asks for what every reader and copy did when, which costs memory for large checkpoints.
    """

    path: str
    files: tuple[str, ...]
    device: str
    peer: str | None
    mode: str | None
    streams: int | None
    chunk_bytes: int | None
    order: str | None
    first_layers: int | None
    verify: bool
    memory_fraction: float | None
    spans: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task, in the terms of `coldctl.results.bench.BenchRun`. `error` is the reason of a load that
    failed: then all else is null, 0 or empty."""

    error: str | None = None
    mode: str | None = None
    seconds: float | None = None
    loaded_seconds: float | None = None
    cpu_seconds: float | None = None
    bytes: int = 0
    tensors: int = 0
    content_sum: str | None = None
    stages: tuple[Stage, ...] = ()
    first_layers_seconds: float | None = None
    attention_ready_seconds: tuple[float, ...] = ()
    reason: str | None = None
    reader_streams: int | None = None
    direct_bytes: int | None = None
    ring: RingFacts | None = None
    copies: CopyFacts | None = None
    notes: tuple[str, ...] = ()
    host_memory: HostMemory | None = None
    device_memory: DeviceMemory | None = None
    spans: tuple[Span, ...] = ()
