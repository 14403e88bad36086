"""The tensors of a synthetic model, and their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scripts.synthetic.dtypes import WIDTH_BYTES
from scripts.synthetic.families import SHAPES, Size


@dataclass(frozen=True, slots=True)
class Tensor:
    """`number` is the place in the model, from which its data follow; `kind` is weight, norm or scale."""

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTH_BYTES[self.dtype]


def tensors_of(shape: str, size: Size, dtype: str, count: int | None = None) -> list[Tensor]:
    """The model's tensors in its own order, cut after `count` of them."""
    _, entries = SHAPES[shape](size, dtype)
    numbered = (Tensor(number, *entry) for number, entry in enumerate(entries))
    return list(numbered) if count is None else [tensor for tensor, _ in zip(numbered, range(count), strict=False)]


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
