"""coldctl's loads into a CUDA device, from tmpfs and, with --disk, from a disk, warm and cold, against the limits.

    python -m scripts.bench.gpu_load --disk /data --json scripts/bench/results/gpu_load.json

The limits are measured in the same run: pinned memory copied by one, two and four streams, and cold reads of the disk.
`safetensors` is its load_file onto the device. All loads run in one process, after its CUDA context was made. Each way
is tried once before it counts, its bytes are compared, and one that cannot be had here is left out with the reason.
After --seconds no further round begins. Without a CUDA device nothing is measured, and the exit status is 5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from coldctl.events import NULL
from coldctl.jobs.bench.limits.bus import measure_bus
from coldctl.jobs.bench.limits.disk import measure_disk
from coldctl.loader.format.checkpoint import open_checkpoint
from coldctl.units import format_rate
from scripts.bench import cache, machine
from scripts.bench.gpu_runs import LOADERS, Runs, gpu, lacks_cuda
from scripts.bench.report import Target, add_size, conclude, parser, print_samples
from scripts.make_checkpoint import make_checkpoint, size_argument

SHARE_AT_LEAST, VERIFY_AT_MOST = 0.9, 1.1
OURS, VERIFIED = "auto", "auto, verified"
FROM_TMPFS = [name for name in LOADERS if name != "direct"]
COLD = (OURS, "ring", "direct", "gds", "safetensors")
WARM = (OURS, "ring", "safetensors")
RAM = Path("/dev/shm")
LACKING = 5


def main() -> int:
    options = parse_arguments()
    if lacking := lacks_cuda():
        print(f"gpu_load: {lacking}, so nothing was measured", file=sys.stderr)
        return LACKING
    bus = measure_bus(options.device, NULL)
    if not bus.bytes_per_second:
        print(f"gpu_load: the bus cannot be measured, so nothing was: {bus.reason}", file=sys.stderr)
        return LACKING
    runs = Runs(options.device, options.rounds, options.seconds)
    from_tmpfs(runs, options.size)
    disk = from_disk(runs, options.disk, options.disk_size) if options.disk else {}

    for state, samples in runs.samples.items():
        print(f"{state}:")
        print_samples(samples, runs.nbytes[state])
    print(*(f"not to be had here: {name}: {reason}" for name, reason in runs.impossible.items()), sep="\n")
    bus_limit = max(bus.bytes_per_second.values())
    limits = {"tmpfs": bus_limit, "warm": bus_limit, "cold": min(bus_limit, max(disk.values(), default=bus_limit))}
    return conclude(
        "gpu_load",
        options,
        machine.describe(options.disk or RAM, "torch") | gpu(options.device),
        {f"{state}: {name}": each for state, samples in runs.samples.items() for name, each in samples.items()},
        [*(share(runs, state, limits[state]) for state in runs.samples), verification(runs), right(runs)],
        bytes=runs.nbytes,
        pinned_bytes_per_second=bus.bytes_per_second,
        disk_bytes_per_second=disk,
        impossible=runs.impossible,
        reports=runs.reports,
    )


def parse_arguments() -> argparse.Namespace:
    arguments = parser(__doc__, rounds=5)
    add_size(arguments, "8GiB")
    arguments.add_argument("--disk", type=Path, metavar="DIR", help="a folder on the disk to read from (default: none)")
    arguments.add_argument(
        "--disk-size", type=size_argument, default="4GiB", help="of the checkpoint there (default: 4GiB)"
    )
    arguments.add_argument("--device", default="cuda:0", help="to load to (default: cuda:0)")
    arguments.add_argument(
        "--seconds", type=float, default=300, help="after which no further round begins (default: 300)"
    )
    return arguments.parse_args()


def from_tmpfs(runs: Runs, size_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="coldctl-bench-", dir=RAM) as folder:
        make_checkpoint(Path(folder), shape="llama", size_bytes=size_bytes, shard_bytes=5_000_000_000)
        runs.measure("tmpfs", Path(folder), FROM_TMPFS, lambda: None)


def from_disk(runs: Runs, disk: Path, size_bytes: int) -> dict[str, float]:
    """Measure loads from `disk`, and return what the disk gives, by the way of reading."""
    with tempfile.TemporaryDirectory(prefix="coldctl-bench-", dir=disk) as folder:
        files = make_checkpoint(Path(folder), shape="llama", size_bytes=size_bytes, shard_bytes=5_000_000_000)
        rates = measure_disk(open_checkpoint(folder), NULL)
        runs.measure("cold", Path(folder), COLD, lambda: cache.make_cold(files))
        runs.measure("warm", Path(folder), WARM, lambda: cache.make_warm(files))
    return {way: rate for way, rate in (("direct", rates.direct), ("buffered", rates.buffered)) if rate}


def share(runs: Runs, state: str, limit_bytes_per_second: float) -> Target:
    wanted = f"at least {SHARE_AT_LEAST} of the limit, {format_rate(limit_bytes_per_second)}"
    seconds = runs.median_seconds(state, OURS)
    if seconds is None:
        return Target(wanted, f"{state}, {OURS}: not measured", met=False)
    rate = runs.nbytes[state] / seconds
    found = f"{state}, {OURS}: {format_rate(rate)}, {rate / limit_bytes_per_second:.3f} of the limit"
    return Target(wanted, found, met=rate >= SHARE_AT_LEAST * limit_bytes_per_second)


def verification(runs: Runs) -> Target:
    wanted = f"at most {VERIFY_AT_MOST} of the time without"
    verified, plain = runs.median_seconds("tmpfs", VERIFIED), runs.median_seconds("tmpfs", OURS)
    if verified is None or plain is None:
        return Target(wanted, f"tmpfs, {VERIFIED}: not measured", met=False)
    return Target(wanted, f"tmpfs, {VERIFIED}: {verified / plain:.3f}", met=verified <= VERIFY_AT_MOST * plain)


def right(runs: Runs) -> Target:
    found = f"other bytes from {', '.join(runs.wrong)}" if runs.wrong else "the files' bytes from every load"
    return Target("the files' bytes from every load", found, met=not runs.wrong)


if __name__ == "__main__":
    sys.exit(main())
