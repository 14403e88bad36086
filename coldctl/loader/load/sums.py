"""Block sums of memory (DESIGN §10): of host memory on the CPU, of device memory on the device.

They are S1 = Σ w_i and S2 = Σ (i+1) w_i mod 2^64 over the little-endian 64-bit words w_i of a block, padded with zeros.
They find bytes that were lost, changed, swapped or moved, and are no proof against an adversary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.events import NULL, Events
from coldctl.loader.device.protocol import Bytes
from coldctl.loader.pool import default_streams_cap, share_out
from coldctl.loader.sink import BLOCK_BYTES
from coldctl.units import MIB

Blocks = NDArray[np.int64]
"""Shape [blocks, 2]: the first byte in memory (of a device: a multiple of 8), and how many, from 1 to BLOCK_BYTES."""

Sums = NDArray[np.uint64]
"""Shape [blocks, 2]: S1 and S2."""

WINDOW_BYTES = 64 * MIB
"""What one running sum covers: a block at least, and enough for the device to work longer than Python asks it to."""

_WORD_BYTES = 8
_FIRST_THREADS = 2

_Numbers = NDArray[np.int64]
_Tensor = Any


def host_sums(memory: memoryview, blocks: Blocks, events: Events = NULL) -> Sums:
    """The sums of each of `blocks` of `memory`, bytes of the host, computed on several threads.

    Advances `events` by the bytes of the blocks, and raises StoppedError when it asks for that.
    """
    sums = np.zeros(blocks.shape, dtype=np.uint64)
    starts, sizes = blocks.T.tolist()
    word_sums = kernels().word_sums

    def work(batch: range) -> Iterator[int]:
        for number in batch:
            sums[number] = word_sums(memory[starts[number] : starts[number] + sizes[number]], 0)
        yield sum(sizes[batch.start : batch.stop])

    share_out(_batches(sizes), lambda: nullcontext(work), events, first=_FIRST_THREADS, cap=default_streams_cap())
    return sums


def device_sums(memory: Bytes, blocks: Blocks) -> Sums:
    """The sums of each of `blocks` of `memory`, a 1-D torch.uint8 tensor whose address is a multiple of 8.

    Computed where `memory` is, by torch alone, in calls whose number depends on the bytes and not on the blocks. Takes
    2 x WINDOW_BYTES there, and 400 bytes for each block; raises torch.OutOfMemoryError where they cannot be had. What
    was written to `memory` must have arrived: nothing here waits for another stream.

    Int64 wraps mod 2^64. With running sums c_j = Σ w_i over i < j, and sums of those d_k = Σ c_j over j ≤ k, the words
    from s up to e have S1 = c_e - c_s, and Σ (e-i) w_i = d_e - d_s - (e-s) c_s. Word i counts i-s+1 times in S2, which
    is (e-s+1) S1 less that sum.
    """
    import torch

    sums = np.empty(blocks.shape, dtype=np.uint64)
    if not len(blocks):
        return sums
    order = np.argsort(blocks[:, 0], kind="stable")
    at_bytes, nbytes = blocks[order].T
    whole_words, tail_bytes = np.divmod(nbytes, _WORD_BYTES)

    running, twice = _running_sums(memory, at_bytes // _WORD_BYTES, whole_words)
    tail = _last_words(memory, at_bytes + whole_words * _WORD_BYTES, tail_bytes)
    words = torch.from_numpy(whole_words).to(memory.device)
    sum1 = running[1] - running[0]
    sum2 = (words + 1) * sum1 - (twice[1] - twice[0] - words * running[0])
    found = torch.stack([sum1 + tail, sum2 + (words + 1) * tail], 1)
    sums[order] = found.cpu().numpy().view(np.uint64)
    return sums


def _running_sums(memory: Bytes, starts: _Numbers, lengths: _Numbers) -> tuple[_Tensor, _Tensor]:
    """c and d at the first word of each block (row 0) and after its last whole one (row 1). `starts` ascend."""
    import torch

    edges = np.stack([starts, starts + lengths])
    windows = list(_windows(*edges.tolist()))
    for numbers, first, _ in windows:
        edges[:, numbers] -= first
    ask = torch.from_numpy(edges).to(memory.device)
    words = memory[: len(memory) // _WORD_BYTES * _WORD_BYTES].view(torch.int64)
    longest = max(stop - first for _, first, stop in windows)
    running = torch.zeros(longest + 1, dtype=torch.int64, device=memory.device)
    twice = torch.zeros_like(running)
    found = []
    for numbers, first, stop in windows:
        nwords = stop - first
        torch.cumsum(words[first:stop], 0, out=running[1 : nwords + 1])
        torch.cumsum(running[: nwords + 1], 0, out=twice[: nwords + 1])
        found.append((running[ask[:, numbers]], twice[ask[:, numbers]]))
    return torch.cat([c for c, _ in found], 1), torch.cat([d for _, d in found], 1)


def _windows(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """Blocks that one window holds, its first word and the one after its last."""
    first = stop = 0
    for number, end in enumerate(ends):
        if (end - starts[first]) * _WORD_BYTES > WINDOW_BYTES:
            yield slice(first, number), starts[first], stop
            first = number
        stop = max(stop, end)
    yield slice(first, len(ends)), starts[first], stop


def _last_words(memory: Bytes, at_bytes: _Numbers, nbytes: _Numbers) -> _Tensor:
    """The 0 to 7 bytes at each of `at_bytes` as a word. They go one by one: none may lie past the end of `memory`."""
    import torch

    place = torch.arange(_WORD_BYTES - 1, device=memory.device)
    at, length = (torch.from_numpy(numbers).to(memory.device)[:, None] for numbers in (at_bytes, nbytes))
    found = memory[(at + place).clamp_(max=len(memory) - 1)].to(torch.int64)
    return ((found * (place < length)) << (8 * place)).sum(1)


def _batches(sizes: Sequence[int]) -> Iterator[range]:
    """The numbers of blocks of `sizes`, as many together as have BLOCK_BYTES."""
    first = batch_bytes = 0
    for number, nbytes in enumerate(sizes):
        if batch_bytes + nbytes > BLOCK_BYTES:
            yield range(first, number)
            first, batch_bytes = number, 0
        batch_bytes += nbytes
    if batch_bytes:
        yield range(first, len(sizes))
