"""The anonymous memory of `coldctl repack` at growing sizes, above what its imports take.

The sources are sparse; the targets are written for real, one at a time, so the folder needs room for the largest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from coldctl.units import GIB, KIB, MIB, format_size
from scripts.bench import machine
from scripts.bench.child import COLDCTL, Sample, run_json, run_watching_memory
from scripts.bench.report import Target, add_folder, conclude, parser
from scripts.make_checkpoint import make_checkpoint, size_argument

AT_MOST_BYTES, AT_MOST_BYTES_PER_TENSOR = 200 * MIB, 2 * KIB
SIZES = [1 * GIB, 4 * GIB, 20 * GIB]
IMPORTS = """
from coldctl.cli.app import build
import coldctl.jobs.repack, coldctl.report.text.repack
build()
for line in open("/proc/self/status"):
    if line.startswith("RssAnon:"):
        print(int(line.split()[1]) * 1024)
"""


def main() -> int:
    options = parse_arguments()
    _, imports_bytes = run_json(sys.executable, "-c", IMPORTS)
    print(f"imports alone: {format_size(imports_bytes)}")
    samples, targets = {}, []
    with tempfile.TemporaryDirectory(prefix="coldctl-bench-", dir=options.folder) as folder:
        described = machine.describe(Path(folder))
        for size_bytes in options.size:
            name = f"repack {format_size(size_bytes)}"
            samples[name], tensors = repack(Path(folder), size_bytes, options.rounds)
            targets.append(judge(name, samples[name], tensors, imports_bytes))
    return conclude("memory", options, described, samples, targets, imports_bytes=imports_bytes)


def parse_arguments() -> argparse.Namespace:
    arguments = parser(__doc__, rounds=1)
    add_folder(arguments)
    arguments.add_argument(
        "--size", type=size_argument, nargs="+", default=SIZES, help="of the checkpoints (default: 1GiB 4GiB 20GiB)"
    )
    return arguments.parse_args()


def repack(folder: Path, size_bytes: int, rounds: int) -> tuple[list[Sample], int]:
    """Repack a sparse checkpoint of `size_bytes` `rounds` times; return the runs and the number of tensors."""
    source, target = folder / "source", folder / "target"
    make_checkpoint(source, shape="deepseek-moe", size_bytes=size_bytes, shard_bytes=5_000_000_000, sparse=True)
    command = (COLDCTL, "repack", "--quiet", os.fspath(source), os.fspath(target))
    _, plan = run_json(*command, "--dry-run", "--json")
    samples = []
    for _ in range(rounds):
        samples.append(run_watching_memory(*command))
        shutil.rmtree(target)
    shutil.rmtree(source)
    return samples, plan["tensors"]


def judge(name: str, samples: list[Sample], tensors: int, imports_bytes: int) -> Target:
    peak_bytes = max(sample.peak_anon_bytes or 0 for sample in samples) - imports_bytes
    limit_bytes = AT_MOST_BYTES + AT_MOST_BYTES_PER_TENSOR * tensors
    return Target(
        wanted=f"at most {format_size(limit_bytes)}",
        found=f"{name}, {tensors} tensors: {format_size(peak_bytes)} above the imports",
        met=peak_bytes <= limit_bytes,
    )


if __name__ == "__main__":
    sys.exit(main())
