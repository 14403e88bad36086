"""The limit of verify, in a process of its own: the seconds to copy files out of the page cache, and to hash as much.

    python -m scripts.bench.hash_and_copy THREADS FILE...

Prints {"copy_seconds", "hash_seconds"}. Each thread has one buffer of 1 MiB, as coldctl's readers have: the copy
fills it by pread, and the hash reads it while the CPU's cache holds it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

from coldctl.units import MIB

PIECE_BYTES = MIB
Piece = tuple[int, int, int]
"""Descriptor, offset, length."""


def main() -> None:
    threads, files = int(sys.argv[1]), sys.argv[2:]
    descriptors = [os.open(path, os.O_RDONLY) for path in files]
    pieces = [
        (descriptor, offset, min(PIECE_BYTES, os.fstat(descriptor).st_size - offset))
        for descriptor in descriptors
        for offset in range(0, os.fstat(descriptor).st_size, PIECE_BYTES)
    ]
    print(json.dumps({"copy_seconds": timed(copy, pieces, threads), "hash_seconds": timed(digest, pieces, threads)}))


def timed(work: Callable[[list[Piece]], None], pieces: list[Piece], threads: int) -> float:
    """Seconds for all pieces, split evenly over the threads in runs that lie together."""
    per_thread = -(-len(pieces) // threads)
    shares = [pieces[start : start + per_thread] for start in range(0, len(pieces), per_thread)]
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, shares))
    return time.perf_counter() - start


def copy(pieces: list[Piece]) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    for descriptor, offset, nbytes in pieces:
        if os.preadv(descriptor, [buffer[:nbytes]], offset) != nbytes:
            raise OSError("a file ended early")


def digest(pieces: list[Piece]) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    hasher = blake3()
    for _, _, nbytes in pieces:
        hasher.update(buffer[:nbytes])


if __name__ == "__main__":
    main()
