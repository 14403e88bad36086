"""`coldctl prewarm` against `cat`, `dd bs=1M` and `vmtouch -t`: the same cold files on a RAM-backed disk.

Before each run the files are out of the page cache, and after it they are in, both as fincore counts them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from statistics import median

from coldctl.units import GIB
from scripts.bench import cache, machine
from scripts.bench.child import COLDCTL, Sample, run
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.ramdisk import ram_disk
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

MEDIAN_AT_LEAST, LOWER_AT_LEAST = 0.95, 0.85
CPU_SECONDS_PER_GIB_AT_MOST = 0.15
OURS, START = "coldctl prewarm", "coldctl prewarm --dry-run"


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "2GiB")
    options = arguments.parse_args()
    with ram_disk(options.size) as disk:
        shards = make_checkpoint(disk / "source", shape="llama", size_bytes=options.size, shard_bytes=500_000_000)
        files = [os.fspath(shard) for shard in shards]
        nbytes = sum(shard.stat().st_size for shard in shards)

        def warmed_by(*command: str) -> Callable[[], Sample]:
            def sample() -> Sample:
                cache.make_cold(shards)
                measured = run(*command)
                cache.expect_warm(shards)
                return measured

            return sample

        def started() -> Sample:
            cache.make_cold(shards)
            return run(COLDCTL, "prewarm", "--quiet", "--dry-run", os.fspath(disk / "source"))

        contenders = {
            OURS: warmed_by(COLDCTL, "prewarm", "--quiet", os.fspath(disk / "source")),
            "cat": warmed_by("cat", *files),
            "dd bs=1M": warmed_by(
                "sh", "-c", 'for f; do dd if="$f" of=/dev/null bs=1M status=none; done', "dd", *files
            ),
            "vmtouch -t": warmed_by("vmtouch", "-q", "-t", *files),
            START: started,
        }
        samples = interleave(contenders, options.rounds)
        described = machine.describe(disk)

    print_samples(samples, nbytes)
    return conclude(
        "prewarm_vs_tools", options, described, samples, [speed(samples), cpu(samples, nbytes)], bytes=nbytes
    )


def speed(samples: dict[str, list[Sample]]) -> Target:
    """Not inferior to the tool with the best median; coldctl's start-up is taken off, as its dry run shows it."""
    best = min(samples.keys() - {OURS, START}, key=lambda name: median(run.seconds for run in samples[name]))
    start_seconds = median(run.seconds for run in samples[START])
    ratio = median_ratio([run.seconds for run in samples[best]], [run.seconds - start_seconds for run in samples[OURS]])
    return Target(
        wanted=f"a median of at least {MEDIAN_AT_LEAST} and a lower bound of at least {LOWER_AT_LEAST}",
        found=f"throughput without start-up is {ratio} of the best tool's, {best}",
        met=ratio.median >= MEDIAN_AT_LEAST and ratio.low >= LOWER_AT_LEAST,
    )


def cpu(samples: dict[str, list[Sample]], nbytes: int) -> Target:
    spent = median(run.cpu_seconds for run in samples[OURS]) - median(run.cpu_seconds for run in samples[START])
    per_gib = spent / (nbytes / GIB)
    return Target(
        wanted=f"at most {CPU_SECONDS_PER_GIB_AT_MOST}",
        found=f"{per_gib:.3f} CPU s/GiB without start-up",
        met=per_gib <= CPU_SECONDS_PER_GIB_AT_MOST,
    )


if __name__ == "__main__":
    sys.exit(main())
