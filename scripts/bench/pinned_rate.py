"""The bus's limit, in a process of its own: pinned host memory copied to a CUDA device, as torch does it.

    python -m scripts.bench.pinned_rate DEVICE

Prints the bytes per second of every round, by the number of streams that took turns:
{"1": [...], "2": [...], "4": [...]}.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from coldctl.units import GIB, MIB

CHUNK_BYTES = 16 * MIB
STREAMS = (1, 2, 4)
ROUNDS = 5


def main() -> None:
    device = sys.argv[1]
    source = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(GIB, dtype=torch.uint8, device=device)
    rates: dict[int, list[float]] = {count: [] for count in STREAMS}
    for _ in range(1 + ROUNDS):
        for count in STREAMS:
            rates[count].append(rate(target, source, [torch.cuda.Stream(device) for _ in range(count)]))
    print(json.dumps({str(count): measured[1:] for count, measured in rates.items()}))  # the first round warms up


def rate(target: torch.Tensor, source: torch.Tensor, streams: list[torch.cuda.Stream]) -> float:
    """Copy all of it twice. Streams that only queue behind each other show no gain: the clock ends after the last."""
    pieces = list(zip(target.split(CHUNK_BYTES), source.split(CHUNK_BYTES), strict=True)) * 2
    torch.cuda.synchronize(target.device)
    start = time.perf_counter()
    for number, (to, chunk) in enumerate(pieces):
        with torch.cuda.stream(streams[number % len(streams)]):
            to.copy_(chunk, non_blocking=True)
    torch.cuda.synchronize(target.device)
    seconds = time.perf_counter() - start
    return sum(int(chunk.nbytes) for _, chunk in pieces) / seconds


if __name__ == "__main__":
    main()
