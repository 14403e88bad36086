"""The benchmarks that `python -m scripts.bench` runs, by name: what each compares, what it needs, how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.units import GIB, MIB
from scripts.bench.host_loaders import LOADERS
from scripts.bench.needs import SHARED_MEMORY, Modules, Need, Room, Root, Tool

BENCH_GROUP = (
    ".venv/bin/python -m pip install --group bench -c scripts/constraints.txt -c scripts/bench/constraints.txt"
)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`name` is that of its module and of its result. `quoted`: the README has the figures of the kept result.

    `minutes` is a rough guess, for two CPUs and nothing else to do.
    """

    name: str
    compares: str
    minutes: int
    needs: tuple[Need, ...]
    quoted: bool = True


FINCORE = Tool("fincore", "util-linux-extra")
TORCH = Modules("torch", ("torch",), "scripts/setup")


def ram_disk(nbytes: int) -> tuple[Need, ...]:
    """For scripts.bench.ramdisk with room for `nbytes`."""
    room = Room(nbytes + nbytes // 16 + 64 * MIB, SHARED_MEMORY)
    return (Root(), Tool("mkfs.ext4", "e2fsprogs"), Tool("mount", "mount"), FINCORE, room)


BENCHMARKS = (
    Benchmark("startup", "coldctl --version and status with a bare interpreter", 1, ()),
    Benchmark("memory", "the memory of repack at 1, 4 and 20 GiB with what is allowed", 1, (Room(21 * GIB),)),
    Benchmark("repack_vs_cp", "repack with cp and sync", 2, ram_disk(4 * GIB)),
    Benchmark("verify_vs_limit", "verify with copying and hashing as much", 1, (FINCORE, Room(5 * GIB))),
    Benchmark(
        "prewarm_vs_tools", "prewarm with cat, dd and vmtouch", 2, (*ram_disk(2 * GIB), Tool("vmtouch", "vmtouch"))
    ),
    Benchmark(
        "small_tensors", "loads of 90,000 small tensors with those of safetensors", 3, (*ram_disk(256 * MIB), TORCH)
    ),
    Benchmark(
        "load_vs_peers",
        "loads into host memory with those of other loaders, warm and cold",
        20,
        (
            *ram_disk(4 * GIB),
            Modules("the bench group", tuple(sorted({loader.package for loader in LOADERS.values()})), BENCH_GROUP),
        ),
    ),
    Benchmark("native", "the compiled kernels with torch, numpy and the plain ones", 3, (TORCH,)),
    Benchmark(
        "gpu_load",
        "loads into a GPU with the limits of its bus",
        10,
        (TORCH, Room(9 * GIB, SHARED_MEMORY)),
        quoted=False,
    ),
)
