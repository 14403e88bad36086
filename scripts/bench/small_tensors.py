"""coldctl's load of 90,000 small tensors in one warm file, against safetensors' call for each of them.

The file is on a RAM-backed disk. Each load runs in a process of its own and keeps every tensor. The clock ends when the
last tensor is there, before the bytes are summed up to compare them: touching each tensor takes Python longer than
loading it. So safetensors, which maps the file, is not charged for its bytes, and coldctl is.
"""

from __future__ import annotations

import sys

from scripts.bench import cache, machine
from scripts.bench.loads import Loads
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.ramdisk import ram_disk
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

SPEEDUP_AT_LEAST = 3.0
OURS, THEIRS = "coldctl arena", "safetensors by tensor"


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "256MiB")
    arguments.add_argument("--tensors", type=int, default=90_000, help="in the checkpoint (default: 90000)")
    options = arguments.parse_args()
    with ram_disk(options.size) as disk:
        files = make_checkpoint(
            disk / "source",
            shape="deepseek-moe",
            size_bytes=options.size,
            shard_bytes=2 * options.size,
            tensor_count=options.tensors,
        )
        loads = Loads(disk / "source", until="loaded")
        samples = interleave(loads.timed([OURS, THEIRS], lambda: cache.make_warm(files)), options.rounds)
        described = machine.describe(disk, "torch")

    print_samples(samples)
    speedup = median_ratio([run.seconds for run in samples[THEIRS]], [run.seconds for run in samples[OURS]])
    target = Target(
        wanted=f"at least {SPEEDUP_AT_LEAST:g} times",
        found=f"{OURS} loads {loads.content.tensors} tensors {speedup} times as fast as {THEIRS}",
        met=speedup.median >= SPEEDUP_AT_LEAST,
    )
    return conclude(
        "small_tensors",
        options,
        described,
        samples,
        [target],
        tensors=loads.content.tensors,
        bytes=loads.content.nbytes,
    )


if __name__ == "__main__":
    sys.exit(main())
