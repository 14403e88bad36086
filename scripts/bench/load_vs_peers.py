"""coldctl's loads into host memory against other loaders': the same checkpoint on a RAM-backed disk, warm and cold.

Each load runs in a process of its own, keeps every tensor and touches every byte; its clock leaves out the imports. The
files are in the page cache before a warm load and out of it before a cold one, both as fincore counts them. Memory is
that of one more load each. The loaders that are no dependency of coldctl's are installed by

    .venv/bin/python -m pip install --group bench -c scripts/constraints.txt -c scripts/bench/constraints.txt

One that is not installed is left out, of the judgement too, and the verdict says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from coldctl.units import MIB, format_size
from scripts.bench import cache, machine
from scripts.bench.child import Sample, run
from scripts.bench.host_loaders import LOADERS, TENSORIZER_FILE
from scripts.bench.loads import Loads
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.ramdisk import ram_disk
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

MEDIAN_AT_LEAST, LOWER_AT_LEAST = 0.95, 0.85
MEMORY_AT_MOST_BYTES = 100 * MIB
MAP, ARENA, MMAP = "coldctl map", "coldctl arena", "safetensors mmap"
COPYING = (
    "safetensors pread",
    "fastsafetensors direct",
    "fastsafetensors buffered",
    "runai direct",
    "runai buffered",
    "tensorizer",
)
CONVERT = """
import sys
from pathlib import Path
from scripts.bench.host_loaders import safetensors
from tensorizer import TensorSerializer
serializer = TensorSerializer(sys.argv[2])
serializer.write_state_dict(dict(safetensors("mmap")(Path(sys.argv[1])).tensors))
serializer.close()
"""

Samples = Mapping[str, Sequence[Sample]]


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "2GiB")
    options = arguments.parse_args()
    names = [name for name in (MAP, ARENA, MMAP, *COPYING) if LOADERS[name].installed]
    with ram_disk(2 * options.size) as disk:
        files = make_checkpoint(disk / "source", shape="llama", size_bytes=options.size, shard_bytes=500_000_000)
        if "tensorizer" in names:
            files.append(converted(disk / "source"))
        loads = Loads(disk / "source")
        warm = interleave(loads.timed(names, lambda: cache.make_warm(files)), options.rounds)
        memory_bytes = {f"warm: {name}": loads.memory_bytes(name) for name in names}
        cold = interleave(loads.timed(names, lambda: cache.make_cold(files)), options.rounds)
        cache.make_cold(files)
        memory_bytes[f"cold: {ARENA}"] = loads.memory_bytes(ARENA)
        described = machine.describe(disk, "torch", *(LOADERS[name].package for name in names))

    nbytes = loads.content.nbytes
    samples: dict[str, list[Sample]] = {}
    for state, of_state in (("warm", warm), ("cold", cold)):
        print(f"{state}:")
        print_samples(of_state, nbytes)
        samples |= {f"{state}: {name}": runs for name, runs in of_state.items()}
    targets = [
        not_inferior("warm", warm, MAP, [MMAP]),
        not_inferior("warm", warm, ARENA, COPYING),
        not_inferior("cold", cold, MAP, [MMAP, *COPYING]),
        not_inferior("cold", cold, ARENA, [MMAP, *COPYING]),
        *(memory(load, memory_bytes[load], nbytes) for load in (f"warm: {ARENA}", f"cold: {ARENA}")),
    ]
    return conclude("load_vs_peers", options, described, samples, targets, bytes=nbytes, peak_memory_bytes=memory_bytes)


def converted(folder: Path) -> Path:
    """The checkpoint in tensorizer's own format, the only one that it reads."""
    target = folder / TENSORIZER_FILE
    run(sys.executable, "-c", CONVERT, os.fspath(folder), os.fspath(target))
    return target


def not_inferior(state: str, samples: Samples, ours: str, others: Sequence[str]) -> Target:
    """Not inferior to the one with the best median of `others`, as far as they are installed."""
    present = [name for name in others if name in samples]
    best = min(present, key=lambda name: median(run.seconds for run in samples[name]))
    ratio = median_ratio([run.seconds for run in samples[best]], [run.seconds for run in samples[ours]])
    missing = sorted(set(others) - set(present))
    but = f"; not installed: {', '.join(missing)}" if missing else ""
    return Target(
        wanted=f"a median of at least {MEDIAN_AT_LEAST} and a lower bound of at least {LOWER_AT_LEAST}",
        found=f"{state}, throughput of {ours} is {ratio} of that of the best of {len(present)}, {best}{but}",
        met=ratio.median >= MEDIAN_AT_LEAST and ratio.low >= LOWER_AT_LEAST,
    )


def memory(load: str, peak_bytes: int, nbytes: int) -> Target:
    return Target(
        wanted=f"at most {format_size(MEMORY_AT_MOST_BYTES)} more than the data",
        found=f"{load} takes {format_size(peak_bytes)} above the imports for {format_size(nbytes)} of data",
        met=peak_bytes <= nbytes + MEMORY_AT_MOST_BYTES,
    )


if __name__ == "__main__":
    sys.exit(main())
