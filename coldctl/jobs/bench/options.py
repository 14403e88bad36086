"""What `bench` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.loader.order import Order
from coldctl.results.bench import CacheState

HOST_MODES = ("auto", "buffered", "direct", "map", "per-tensor")
DEVICE_MODES = ("auto", "ring", "direct", "mapped", "per-tensor", "gds")
PEERS = ("safetensors", "fastsafetensors", "runai", "instanttensor", "tensorizer", "torch")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`device` is `cpu`, a GPU as torch spells it, or `auto`: the first GPU that torch can use, and else the host.

    `modes`, `streams`, `chunks_bytes` and `orders` span the ways to load that are compared, each with each; an empty
    one stands for the loader's default. On a GPU `streams` are those that copy (1, or 4: lanes for q, k, v and the
    rest), and a chunk is a pinned slot; on the host `streams` are threads that read, and a chunk is what one of them
    reads at a time. `sweep` takes every mode of the device, and several streams and chunks where none are given.
    `compare` names peers, of which those that are installed run. `rounds` is how often each way runs in each of the
    cache states `caches`. `memory_fraction` (0 to 1) and `max_split_size_bytes` steer torch's allocator on a GPU.
    `baseline` is a file with a former result as JSON, and `max_regression` (0 to 1; 0.1 where it is null)
    how much slower is no regression.
    """

    path: str
    device: str = "auto"
    modes: tuple[str, ...] = ()
    streams: tuple[int, ...] = ()
    chunks_bytes: tuple[int, ...] = ()
    orders: tuple[Order, ...] = ()
    sweep: bool = False
    rounds: int = 5
    caches: tuple[CacheState, ...] = ("cold", "warm")
    compare: tuple[str, ...] = ()
    verify: bool = False
    first_layers: int | None = None
    memory_fraction: float | None = None
    max_split_size_bytes: int | None = None
    baseline: str | None = None
    max_regression: float | None = None
