"""One load into host memory, in a process of its own: every tensor kept, every byte touched, imports not counted.

    python -m scripts.bench.load_once LOADER FOLDER

Prints {"loaded", "touched", "tensors", "bytes", "sum", "imports_bytes"}. `loaded` holds the {"seconds", "cpu_seconds"}
until the loader returned, `touched` those until every byte was touched as well. `sum` is made of
the names and bytes of all tensors (`content_sum`). `imports_bytes` is RssAnon before the load.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import torch

from coldctl.jobs.bench.child.content import content_sum
from coldctl.loader.host.memory import rss_anon_bytes
from scripts.bench.host_loaders import LOADERS


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    load = LOADERS[name].imported()
    content_sum({"": torch.zeros(1)})  # what the sum itself imports is not the load's
    gc.collect()  # what the imports left over is no loader's to look through
    imports_bytes = rss_anon_bytes()
    clock = Clock()
    tensors, _owner = load(folder)
    loaded = clock.read()
    checksum = content_sum(tensors)
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


if __name__ == "__main__":
    main()
