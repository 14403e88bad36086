"""One number for names and bytes of tensors: the same for all loads that bring the same. On the host it touches every
byte."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldctl.units import MIB

Tensor = Any
"""A torch.Tensor or a numpy array."""

_WORD_BYTES = 8
_PAGE_BYTES = 4096
_WINDOW_PAGES = 64 * MIB // _PAGE_BYTES


def content_sum(tensors: Mapping[str, Tensor]) -> int:
    """Each tensor's bytes as little-endian words of 8, its end padded with zeros: those of its nth page of 4096 bytes
    added up, times 2 n + 1; these added up, times an odd number made of its name (2 CRC-32 + 1); and all of them added
    up, modulo 2^64.

    Tensors of any shape and dtype, summed where they are, in any order. The sum tells loaders of one checkpoint apart
    that lost, changed or repeated bytes, swapped pages, or gave a tensor another's name; not those that swapped words
    inside a page, or gave a tensor another shape or dtype; and zeros add nothing.
    """
    return sum(_sum_of(tensor) * _weight(name) for name, tensor in tensors.items()) % 2**64


def _weight(name: str) -> int:
    return 2 * zlib.crc32(name.encode("utf-8", "surrogatepass")) + 1


def _sum_of(tensor: Tensor) -> int:
    if isinstance(tensor, np.ndarray):
        return host_sum(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
    if tensor.numel() == 0:
        return 0
    import torch

    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    return host_sum(octets.numpy()) if tensor.device.type == "cpu" else device_sum(octets)


def host_sum(octets: NDArray[np.uint8]) -> int:
    """The weighted sum of contiguous bytes in host memory, wherever they begin, before the modulus. Shape [bytes]."""
    pages = len(octets) // _PAGE_BYTES
    total = _last_page(octets[pages * _PAGE_BYTES :]) * (2 * pages + 1)
    if pages:
        words = octets[: pages * _PAGE_BYTES].view("<u8").reshape(pages, _PAGE_BYTES // _WORD_BYTES)
        total += int(np.dot(np.add.reduce(words, axis=1, dtype=np.uint64), np.arange(1, 2 * pages, 2, dtype=np.uint64)))
    return total


def _last_page(octets: NDArray[np.uint8]) -> int:
    whole_bytes = len(octets) // _WORD_BYTES * _WORD_BYTES
    words = np.add.reduce(octets[:whole_bytes].view("<u8"), dtype=np.uint64)
    return int(words) + int.from_bytes(octets[whole_bytes:].tobytes(), "little")


def device_sum(octets: Tensor) -> int:
    """The same of a contiguous torch.uint8 tensor, by torch on its device: int64 wraps modulo 2^64. Shape [bytes].

    Takes 64 MiB there for bytes that begin off a boundary of 8, where torch has no words, and else nothing. What was
    written to them must have arrived: nothing here waits for another stream.
    """
    import torch

    pages = len(octets) // _PAGE_BYTES
    total = _last_page(octets[pages * _PAGE_BYTES :].cpu().numpy()) * (2 * pages + 1)
    for first in range(0, pages, _WINDOW_PAGES):
        end = min(first + _WINDOW_PAGES, pages)
        window = octets[first * _PAGE_BYTES : end * _PAGE_BYTES]
        if window.storage_offset() % _WORD_BYTES or window.data_ptr() % _WORD_BYTES:
            window = window.clone()
        sums = window.view(torch.int64).view(end - first, _PAGE_BYTES // _WORD_BYTES).sum(dim=1)
        total += int((sums * torch.arange(2 * first + 1, 2 * end, 2, device=sums.device)).sum())
    return total
