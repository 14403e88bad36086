"""The page cache under a benchmark: files made cold or warm, and the proof, by fincore instead of by coldctl."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from coldctl.units import MIB

COLD_SHARE = 0.01
WARM_SHARE = 0.99
_TRIES = 20


class NotAsWantedError(Exception):
    """The page cache would not take the state that a fair comparison needs."""


def resident_share(paths: Iterable[Path]) -> float:
    """The share of the files' bytes that is in the page cache, as fincore(1) counts it."""
    files = [os.fspath(path) for path in paths]
    command = ("fincore", "--bytes", "--noheadings", "--raw", "--output", "RES,SIZE", *files)
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    counts = [(int(resident), int(size)) for resident, size in map(str.split, lines)]
    return sum(resident for resident, _ in counts) / sum(size for _, size in counts)


def make_cold(paths: Iterable[Path]) -> None:
    """Drop the files from the page cache and prove it. Pages on their way to the LRU lists take a second try."""
    files = list(paths)
    for _ in range(_TRIES):
        for path in files:
            _drop(path)
        if resident_share(files) < COLD_SHARE:
            return
        time.sleep(0.05)
    raise NotAsWantedError(f"{resident_share(files):.1%} of the files stayed in the page cache")


def make_warm(paths: Iterable[Path]) -> None:
    """Read the files into the page cache, unless they are there, and prove it."""
    files = list(paths)
    if resident_share(files) >= WARM_SHARE:
        return
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass
    expect_warm(files)


def expect_warm(paths: Iterable[Path]) -> None:
    """Raise NotAsWantedError unless all but a rounding error of the files is in the page cache."""
    share = resident_share(paths)
    if share < WARM_SHARE:
        raise NotAsWantedError(f"only {share:.1%} of the files is in the page cache")


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
