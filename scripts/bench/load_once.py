"""One load into host memory, in a process of its own: every tensor kept, every byte touched, imports not counted.

    python -m scripts.bench.load_once LOADER FOLDER

Prints {"loaded", "touched", "tensors", "bytes", "sum", "imports_bytes"}. `loaded` holds the {"seconds", "cpu_seconds"}
until the loader returned, `touched` those until every byte was touched as well. `sum` adds up all bytes as
little-endian words of 8 (a tensor's end is padded with zeros) modulo 2^64. `imports_bytes` is RssAnon before the load.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.bench.child import anon_bytes
from scripts.bench.host_loaders import LOADERS

WORD_BYTES = 8


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    load = LOADERS[name].imported()
    total([torch.zeros(WORD_BYTES)])
    gc.collect()  # what the imports left over is no loader's to look through
    imports_bytes = anon_bytes(os.getpid())
    clock = Clock()
    tensors, _owner = load(folder)
    loaded = clock.read()
    checksum = total(tensors.values())
    result = {
        "loaded": loaded,
        "touched": clock.read(),
        "tensors": len(tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "sum": checksum,
        "imports_bytes": imports_bytes,
    }
    print(json.dumps(result))


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        seconds, cpu_seconds = self._start
        return {"seconds": time.perf_counter() - seconds, "cpu_seconds": time.process_time() - cpu_seconds}


def total(tensors: Iterable[Any]) -> int:
    return sum(_sum_of(tensor) for tensor in tensors) % 2**64


def _sum_of(tensor: Any) -> int:
    octets = tensor.reshape(-1).view(torch.uint8).numpy()
    words_end = octets.size // WORD_BYTES * WORD_BYTES
    words = int(octets[:words_end].view(np.uint64).sum(dtype=np.uint64))
    return words + int.from_bytes(octets[words_end:].tobytes(), "little")


if __name__ == "__main__":
    main()
