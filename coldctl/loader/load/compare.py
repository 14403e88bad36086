"""Memory against files, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from coldctl.events import Events
from coldctl.loader.device.protocol import Bytes, Device
from coldctl.loader.load.parts import Part
from coldctl.loader.load.reread import Use, read_again
from coldctl.loader.sink import BLOCK_BYTES
from coldctl.units import MIB

_AT_ONCE_BYTES = 1 * MIB

Memory = Any
"""What all tensors of a load stand in: a one-dimensional torch.Tensor of uint8, or on the host an ndarray of them."""

_FirstDifference = Callable[[Part, memoryview], int | None]
"""The place of the first byte of a part that is not in memory as in the file."""

_Held = list[Memory]
"""The memory first, then each thread's scratch; emptied at the end, since a traceback keeps functions, and those what
they close over."""


def compare(parts: Iterable[Part], memory: Memory, device: Device | None, events: Events) -> list[tuple[Part, int]]:
    """The parts that are not in memory as in their files, each with the first byte of its tensor that differs.

    The files are read again; on a device their bytes are copied there for it, outside any ring, to BLOCK_BYTES of its
    memory for each thread. Raises what `read_again` raises, and OutOfMemoryError.
    """
    differing: list[tuple[Part, int]] = []
    held: _Held = [np.asarray(memory) if device is None else memory]
    del memory

    def make_use() -> Use:
        first_difference = _on_host(held) if device is None else _on_device(held, device)

        def use(part: Part, in_file: memoryview) -> None:
            at_bytes = first_difference(part, in_file)
            if at_bytes is not None:
                differing.append((part, part.start_bytes + at_bytes))

        return use

    try:
        read_again(parts, make_use, events)
    finally:
        held.clear()
    return differing


def _on_host(held: _Held) -> _FirstDifference:
    def first_difference(part: Part, in_file: memoryview) -> int | None:
        found = held[0][part.at_bytes : part.at_bytes + part.nbytes]
        expected = np.frombuffer(in_file, dtype=np.uint8)
        for start_bytes in range(0, part.nbytes, _AT_ONCE_BYTES):
            end_bytes = start_bytes + _AT_ONCE_BYTES
            differs = found[start_bytes:end_bytes] != expected[start_bytes:end_bytes]
            if differs.any():
                return start_bytes + int(differs.argmax())
        return None

    return first_difference


def _on_device(held: _Held, device: Device) -> _FirstDifference:
    import torch

    scratch = _Scratch(device, held)

    def first_difference(part: Part, in_file: memoryview) -> int | None:
        found, expected = held[0][part.at_bytes : part.at_bytes + part.nbytes], scratch.memory[: part.nbytes]
        device.copy_plainly(expected, torch.frombuffer(in_file, dtype=torch.uint8))
        if torch.equal(found, expected):
            return None
        return int(found.ne(expected).to(torch.uint8).argmax())

    return first_difference


class _Scratch:
    """Device memory that only `held` holds."""

    def __init__(self, device: Device, held: _Held) -> None:
        self._held = held
        held.append(device.allocate(BLOCK_BYTES))
        self._number = len(held) - 1

    @property
    def memory(self) -> Bytes:
        return self._held[self._number]
