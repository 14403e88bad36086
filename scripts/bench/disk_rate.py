"""The disk's limit for files that are out of the page cache: direct reads at several depths, and buffered reads."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import local

from coldctl.units import MIB
from scripts.bench import cache

PIECE_BYTES = 8 * MIB
DEPTHS = (1, 4, 16, 32)


def disk_rates(files: Sequence[Path]) -> dict[str, float]:
    """Bytes per second of reading `files` once, cold: by so many direct reads at a time, and by four buffered ones."""
    rates = {}
    for depth in DEPTHS:
        cache.make_cold(files)
        rates[f"direct, {depth} at a time"] = _rate(files, os.O_DIRECT, depth)
    cache.make_cold(files)
    rates["buffered"] = _rate(files, 0, 4)
    return rates


def _rate(files: Sequence[Path], flags: int, depth: int) -> float:
    buffers = local()

    def read(piece: tuple[int, int]) -> int:
        descriptor, offset = piece
        if not hasattr(buffers, "mine"):
            buffers.mine = mmap.mmap(-1, PIECE_BYTES)
        return os.preadv(descriptor, [buffers.mine], offset)

    with _opened(files, flags) as descriptors, ThreadPoolExecutor(depth) as pool:
        sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
        pieces = [
            (descriptor, offset)
            for descriptor, size_bytes in zip(descriptors, sizes, strict=True)
            for offset in range(0, size_bytes, PIECE_BYTES)
        ]
        start = time.perf_counter()
        nbytes = sum(pool.map(read, pieces))
        seconds = time.perf_counter() - start
    if nbytes != sum(sizes):
        raise OSError(f"read {nbytes} bytes of {sum(sizes)}")
    return nbytes / seconds


@contextmanager
def _opened(files: Sequence[Path], flags: int) -> Iterator[list[int]]:
    with ExitStack() as stack:
        descriptors = []
        for path in files:
            descriptors.append(os.open(path, os.O_RDONLY | flags))
            stack.callback(os.close, descriptors[-1])
        yield descriptors
