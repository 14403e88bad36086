"""The compiled kernels against torch, numpy's plain sum, and the kernels in numpy that they stand in for.

All work on one array of BF16 in memory and write into arrays that were there before, on one thread each: where others
use the CPUs, torch's threads wait for each other. torch does the same arithmetic twice: as one expression over the
whole, which takes new memory for what it computes, and strip by strip of 64 rows, where it was fastest, in place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from coldctl._native import kernels
from coldctl.kernels.base import Kernels
from coldctl.kernels.plain import PlainKernels
from coldctl.loader.sink import BLOCK_BYTES
from scripts.bench import machine
from scripts.bench.child import Sample
from scripts.bench.pairs import interleave, median_ratio
from scripts.bench.report import Target, add_size, conclude, parser, print_samples

COLUMNS = 4096
STRIP_ROWS = 64
FP8, MOST = "F8_E4M3", 448.0

TARGETS = (
    ("encode", "torch encode", 5.0),
    ("encode", "torch encode in strips", 5.0),
    ("decode", "torch decode", 10.0),
    ("finite scan", "numpy sum", 0.5),
    ("block sums", "numpy sum", 0.5),
    *((name, f"plain {name}", 1.0) for name in ("encode", "decode", "row amax", "finite scan", "block sums")),
)
"""Ours, theirs, and how many times as fast it has to be."""

Jobs = dict[str, Callable[[], object]]


class Arrays:
    """BF16 values [rows, COLUMNS] of an embedding's size, a scale for each row, and room for what comes out."""

    def __init__(self, nbytes: int) -> None:
        rows = max(1, nbytes // (2 * COLUMNS))
        floats = np.random.default_rng(0).standard_normal((rows, COLUMNS), dtype=np.float32)
        self.values = (floats.view(np.uint32) >> 16).astype(np.uint16)
        self.scales = np.full(rows, 0.0123, dtype=np.float32)
        self.codes = np.zeros(self.values.shape, dtype=np.uint8)
        self.decoded = np.zeros_like(self.values)
        self.amax = np.zeros(rows, dtype=np.float32)


def main() -> int:
    arguments = parser(__doc__, rounds=15)
    add_size(arguments, "256MiB")
    options = arguments.parse_args()
    arrays = Arrays(options.size)
    torch.set_num_threads(1)
    plain = {f"plain {name}": job for name, job in jobs(PlainKernels(), arrays).items()}
    contenders = jobs(kernels(), arrays) | torch_jobs(arrays) | plain
    contenders["numpy sum"] = lambda: np.add.reduce(arrays.values.view(np.uint64), axis=None)
    expect_equal(arrays, contenders)
    samples = interleave({name: timed(job) for name, job in contenders.items()}, options.rounds)

    print_samples(samples, arrays.values.nbytes)
    targets = []
    for ours, theirs, at_least in TARGETS:
        speed = median_ratio([run.seconds for run in samples[theirs]], [run.seconds for run in samples[ours]])
        found = f"{ours} ({kernels().name}) is {speed} times as fast as {theirs}"
        targets.append(Target(f"a median of at least {at_least:g}", found, speed.median >= at_least))
    described = machine.describe(Path.cwd(), "torch")
    return conclude("native", options, described, samples, targets, bytes=arrays.values.nbytes, level=kernels().name)


def jobs(of: Kernels, arrays: Arrays) -> Jobs:
    octets = arrays.values.reshape(-1).view(np.uint8)

    def block_sums() -> None:
        for start in range(0, octets.size, BLOCK_BYTES):
            of.word_sums(octets[start : start + BLOCK_BYTES], 0)

    return {
        "encode": lambda: of.encode(arrays.values, "BF16", arrays.codes, FP8, scales=arrays.scales, threads=1),
        "decode": lambda: of.decode(arrays.codes, FP8, arrays.decoded, "BF16", threads=1),
        "row amax": lambda: of.row_amax(arrays.values, "BF16", arrays.amax, threads=1),
        "finite scan": lambda: expect_finite(of, octets),
        "block sums": block_sums,
    }


def torch_jobs(arrays: Arrays) -> Jobs:
    values = torch.from_numpy(arrays.values.view(np.int16)).view(torch.bfloat16)
    codes = torch.from_numpy(arrays.codes).view(torch.float8_e4m3fn)
    decoded = torch.from_numpy(arrays.decoded.view(np.int16)).view(torch.bfloat16)
    scales = torch.from_numpy(arrays.scales)[:, None]

    def encode() -> None:
        codes.copy_((values.float() / scales).clamp(-MOST, MOST).to(torch.float8_e4m3fn))

    def encode_strips() -> None:
        for strip, scale, result in zip(*(each.split(STRIP_ROWS) for each in (values, scales, codes)), strict=True):
            result.copy_(strip.float().div_(scale).clamp_(-MOST, MOST))

    return {
        "torch encode": encode,
        "torch encode in strips": encode_strips,
        "torch decode": lambda: decoded.copy_(codes),
    }


def expect_equal(arrays: Arrays, contenders: Jobs) -> None:
    """Run each contender once: those that do the same have to come to the same."""
    for ours, theirs, result in (
        ("encode", "torch encode", arrays.codes),
        ("encode", "torch encode in strips", arrays.codes),
        ("encode", "plain encode", arrays.codes),
        ("decode", "torch decode", arrays.decoded),
        ("decode", "plain decode", arrays.decoded),
        ("row amax", "plain row amax", arrays.amax),
    ):
        contenders[ours]()
        expected = result.copy()
        contenders[theirs]()
        if not np.array_equal(result, expected):
            raise RuntimeError(f"{ours} and {theirs} come to different results")


def expect_finite(of: Kernels, octets: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    if of.finite_scan(octets, "BF16") != (0, 0):
        raise RuntimeError("the scan found what is not there")


def timed(job: Callable[[], object]) -> Callable[[], Sample]:
    def run() -> Sample:
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        job()
        return Sample(time.perf_counter() - seconds, time.process_time() - cpu_seconds)

    return run


if __name__ == "__main__":
    sys.exit(main())
