"""`coldctl repack` against `cp --reflink=never` and `sync -f`: the same warm bytes, from and to one RAM-backed disk."""

from __future__ import annotations

import os
import shutil
import sys
from statistics import median

from scripts.bench import cache, machine
from scripts.bench.child import COLDCTL, Sample, run
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.ramdisk import ram_disk
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

MEDIAN_AT_MOST, UPPER_AT_MOST = 1.25, 1.4


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "2GiB")
    options = arguments.parse_args()
    with ram_disk(2 * options.size) as disk:
        source, target = disk / "source", disk / "target"
        shards = make_checkpoint(source, shape="llama", size_bytes=options.size, shard_bytes=500_000_000)
        cache.make_warm(shards)

        def copy(*command: str) -> Sample:
            run("sync", "-f", os.fspath(disk))
            cache.expect_warm(shards)
            sample = run(*command)
            shutil.rmtree(target, ignore_errors=True)
            return sample

        repack = (COLDCTL, "repack", "--quiet", os.fspath(source), os.fspath(target))
        cp = ("sh", "-c", 'cp --reflink=never -r "$1" "$2" && sync -f "$2"', "cp", os.fspath(source), os.fspath(target))
        contenders = {
            "coldctl repack": lambda: copy(*repack),
            "cp + sync": lambda: copy(*cp),
            "coldctl repack --dry-run": lambda: copy(*repack, "--dry-run"),
        }
        interleave(contenders, 1)  # every block of the disk is written once before anything counts
        samples = interleave(contenders, options.rounds)
        described = machine.describe(disk)
        nbytes = sum(shard.stat().st_size for shard in shards)

    start_seconds = median(sample.seconds for sample in samples["coldctl repack --dry-run"])
    ratio = median_ratio(
        [sample.seconds - start_seconds for sample in samples["coldctl repack"]],
        [sample.seconds for sample in samples["cp + sync"]],
    )
    print_samples(samples, nbytes)
    target_ratio = Target(
        wanted=f"a median of at most {MEDIAN_AT_MOST} and an upper bound of at most {UPPER_AT_MOST}",
        found=f"(repack − its dry run) / (cp + sync) takes {ratio} of the time",
        met=ratio.median <= MEDIAN_AT_MOST and ratio.high <= UPPER_AT_MOST,
    )
    return conclude("repack_vs_cp", options, described, samples, [target_ratio], bytes=nbytes)


if __name__ == "__main__":
    sys.exit(main())
