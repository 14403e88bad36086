"""A ring of pinned slots: readers fill them, a stream copies each into the arena, and an event guards it until then.

One copy stream is the default: on Hopper copies of one direction run one after another, however many streams they are
given to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from coldctl.errors import PinError
from coldctl.loader.device.protocol import Bytes, Device, Pinned
from coldctl.units import MIB

LEAST_SLOT_BYTES = 1 * MIB
_LEAST_SLOTS = 2


class Slot(NamedTuple):
    """A part of the pinned memory, for readers and for the stream."""

    buffer: memoryview
    tensor: Bytes


class Ring:
    """`slots` slots of `slot_bytes` of pinned memory, halved as often as that cannot be had (`halvings`).

    Raises PinError when not even two slots of 1 MiB can be had. `how` is `registered` or `torch`.
    """

    def __init__(self, device: Device, slot_bytes: int, slots: int) -> None:
        self.halvings = 0
        while True:
            try:
                self._pinned: Pinned = device.pin(slots * slot_bytes)
                break
            except PinError as error:
                if slots > _LEAST_SLOTS:
                    slots = max(slots // 2, _LEAST_SLOTS)
                elif slot_bytes > LEAST_SLOT_BYTES:
                    slot_bytes //= 2
                else:
                    error.locate(stage="pin")
                    raise
                self.halvings += 1
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.how = self._pinned.how

    def __iter__(self) -> Iterator[Slot]:
        for begin, end in pairwise(range(0, (self.slots + 1) * self.slot_bytes, self.slot_bytes)):
            yield Slot(self._pinned.buffer[begin:end], self._pinned.tensor[begin:end])

    def close(self) -> None:
        """Give the pinned memory back. No copy from it may be under way, and no slot may be in use."""
        self._pinned.close()
