"""`coldctl verify` of warm files with digests, against copying their bytes out of the page cache and hashing as many.

The seconds of both sides are taken inside their process, so start-up counts for neither; CPU includes it. The limit
uses as many threads as coldctl may.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from coldctl.loader.pool import default_streams_cap
from scripts.bench import cache, machine
from scripts.bench.child import COLDCTL, Sample, run, run_json
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.report import Target, add_folder, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

SHARE_AT_LEAST = 0.9
OURS, LIMIT = "coldctl verify", "copy + hash"


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "2GiB")
    add_folder(arguments)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="coldctl-bench-", dir=options.folder) as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        make_checkpoint(source, shape="llama", size_bytes=options.size, shard_bytes=500_000_000)
        run(COLDCTL, "repack", "--quiet", os.fspath(source), os.fspath(target))
        shutil.rmtree(source)
        shards = sorted(target.glob("*.safetensors"))
        cache.make_warm(shards)
        contenders = {OURS: lambda: verify(target), LIMIT: lambda: copy_and_hash(shards)}
        samples = interleave(contenders, options.rounds)
        cache.expect_warm(shards)
        described = machine.describe(target)
        nbytes = sum(shard.stat().st_size for shard in shards)

    print_samples(samples, nbytes)
    share = median_ratio([run.seconds for run in samples[LIMIT]], [run.seconds for run in samples[OURS]])
    target_share = Target(
        wanted=f"a median of at least {SHARE_AT_LEAST}",
        found=f"throughput is {share} of copy + hash",
        met=share.median >= SHARE_AT_LEAST,
    )
    return conclude("verify_vs_limit", options, described, samples, [target_share], bytes=nbytes)


def verify(target: Path) -> Sample:
    sample, result = run_json(COLDCTL, "verify", "--quiet", "--json", os.fspath(target))
    if result["digests_checked"] != result["tensors"]:
        raise RuntimeError(f"verify checked {result['digests_checked']} of {result['tensors']} digests")
    return replace(sample, seconds=result["seconds"])


def copy_and_hash(shards: list[Path]) -> Sample:
    threads = str(default_streams_cap())
    sample, parts = run_json(sys.executable, "-m", "scripts.bench.hash_and_copy", threads, *map(os.fspath, shards))
    return replace(sample, seconds=parts["copy_seconds"] + parts["hash_seconds"])


if __name__ == "__main__":
    sys.exit(main())
