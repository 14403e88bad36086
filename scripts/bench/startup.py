"""Start-up: `coldctl --version` against a bare interpreter, and `coldctl status` of a folder of 90,000 tensors."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from scripts.bench import machine
from scripts.bench.child import COLDCTL, run
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint

VERSION_AT_MOST, STATUS_AT_MOST_SECONDS = 2.5, 2.0
VERSION, BARE, STATUS = "coldctl --version", "python -c pass", "coldctl status"


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "1GiB")
    arguments.add_argument("--tensors", type=int, default=90_000, help="in the checkpoint for status (default: 90000)")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="coldctl-bench-") as folder:
        make_checkpoint(
            Path(folder),
            shape="deepseek-moe",
            size_bytes=options.size,
            shard_bytes=500_000_000,
            sparse=True,
            tensor_count=options.tensors,
        )
        contenders = {
            VERSION: lambda: run(COLDCTL, "--version"),
            BARE: lambda: run(sys.executable, "-c", "pass"),
            STATUS: lambda: run(COLDCTL, "status", os.fspath(folder)),
        }
        samples = interleave(contenders, options.rounds)
        described = machine.describe(Path(folder))

    print_samples(samples)
    ratio = median_ratio([run.seconds for run in samples[VERSION]], [run.seconds for run in samples[BARE]])
    status_seconds = median(run.seconds for run in samples[STATUS])
    targets = [
        Target(
            wanted=f"a median of at most {VERSION_AT_MOST}",
            found=f"{VERSION} takes {ratio} of the time of {BARE}",
            met=ratio.median <= VERSION_AT_MOST,
        ),
        Target(
            wanted=f"under {STATUS_AT_MOST_SECONDS:g} s",
            found=f"{STATUS} of {options.tensors} tensors takes {status_seconds:.2f} s",
            met=status_seconds < STATUS_AT_MOST_SECONDS,
        ),
    ]
    return conclude("startup", options, described, samples, targets, tensors=options.tensors)


if __name__ == "__main__":
    sys.exit(main())
