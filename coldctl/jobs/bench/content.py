"""The sum of all bytes of tensors: the same for all loads that bring the same. On the host it touches every byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldctl.units import MIB

Tensor = Any
"""A torch.Tensor or a numpy array."""

_WORD_BYTES = 8
_WINDOW_BYTES = 64 * MIB


def content_sum(tensors: Iterable[Tensor]) -> int:
    """All bytes as little-endian words of 8, the end of each tensor padded with zeros, added up modulo 2^64.

    Tensors of any shape and dtype, summed where they are. The order of the tensors, and of the words in them, makes no
    difference, and zeros add nothing: the sum tells loaders of one checkpoint apart that lost, changed or repeated
    bytes, and not those that swapped them.
    """
    return sum(map(_sum_of, tensors)) % 2**64


def _sum_of(tensor: Tensor) -> int:
    if isinstance(tensor, np.ndarray):
        return host_sum(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
    if tensor.numel() == 0:
        return 0
    import torch

    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    return host_sum(octets.numpy()) if tensor.device.type == "cpu" else device_sum(octets)


def host_sum(octets: NDArray[np.uint8]) -> int:
    """The sum of contiguous bytes in host memory, wherever they begin, before the modulus. Shape [bytes]."""
    whole_bytes = len(octets) // _WORD_BYTES * _WORD_BYTES
    words = np.add.reduce(octets[:whole_bytes].view("<u8"), dtype=np.uint64)
    return int(words) + int.from_bytes(octets[whole_bytes:].tobytes(), "little")


def device_sum(octets: Tensor) -> int:
    """The same of a contiguous torch.uint8 tensor, by torch on its device: int64 wraps modulo 2^64. Shape [bytes].

    Takes 64 MiB there for bytes that begin off a boundary of 8, where torch has no words, and else nothing. What was
    written to them must have arrived: nothing here waits for another stream.
    """
    import torch

    whole_bytes = len(octets) // _WORD_BYTES * _WORD_BYTES
    total = int.from_bytes(octets[whole_bytes:].cpu().numpy().tobytes(), "little")
    for start in range(0, whole_bytes, _WINDOW_BYTES):
        window = octets[start : min(start + _WINDOW_BYTES, whole_bytes)]
        if window.storage_offset() % _WORD_BYTES or window.data_ptr() % _WORD_BYTES:
            window = window.clone()
        total += int(window.view(torch.int64).sum())
    return total
