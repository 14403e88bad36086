"""What is to be loaded: whole tensors, or the part of each that one of several devices takes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from coldctl.loader.format.header import Tensor
from coldctl.loader.source import Source


class Gather(NamedTuple):
    """A strided read: `strips` strips of `strip_bytes`, `pitch_bytes` apart in the file and side by side in memory."""

    strips: int
    strip_bytes: int
    pitch_bytes: int


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A tensor as it is to stand in memory.

    `shape` and `nbytes` are those of the part that is wanted; it begins at `offset_bytes` of `source` and is contiguous
    there, unless `gather` says otherwise. `tensor` is the whole tensor of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Source
    offset_bytes: int
    nbytes: int
    tensor: Tensor
    gather: Gather | None = None

    @property
    def whole(self) -> bool:
        return self.nbytes == self.tensor.nbytes


def whole(source: Source, tensor: Tensor) -> Wanted:
    """All of `tensor`."""
    return Wanted(tensor.name, tensor.dtype, tensor.shape, source, tensor.offset_bytes, tensor.nbytes, tensor)
