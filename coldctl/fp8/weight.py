"""A matrix on its way to FP8: what it is, what it becomes, and what its scales are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.fp8.scales import Grid, stored
from coldctl.fp8.targets import Target
from coldctl.kernels.base import Codes
from coldctl.kernels.checks import Values
from coldctl.kernels.formats import FP8
from coldctl.loader.format.dtypes import BITS
from coldctl.loader.format.header import Tensor

_ELEMENTS = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}


class Weight(NamedTuple):
    """`target` becomes `fp8` (a dtype's name), with scales in `scale_dtype` in the tensor `scale_name` as `grid` says;
    without scales where `grid` is None."""

    target: Target
    fp8: str
    grid: Grid | None
    scale_name: str | None
    scale_dtype: str

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def key(self) -> tuple[str, str]:
        """Under which sinks know it: the names of its shard and its own."""
        return self.target.shard.name, self.name

    @property
    def dtype(self) -> str:
        return self.target.tensor.dtype

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.target.tensor.shape
        return rows, columns

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * self.element_bytes

    @property
    def element_bytes(self) -> int:
        return BITS[self.dtype] // 8

    @property
    def unit_columns(self) -> int:
        """How many values in a row share a scale; a whole row without scales."""
        return self.grid.columns if self.grid else self.shape[1]

    @property
    def most(self) -> float:
        """The largest number of the format."""
        return FP8[self.fp8].most

    @property
    def codes(self) -> Tensor:
        """The tensor of FP8 numbers that takes the place of the target. Its offset is the target's."""
        old = self.target.tensor
        return Tensor(self.name, self.fp8, old.shape, old.offset_bytes, self.shape[0] * self.shape[1])

    @property
    def scale(self) -> Tensor | None:
        """The tensor of the scales, which comes beside it."""
        if self.grid is None or self.scale_name is None:
            return None
        rows, columns = self.grid.scale_shape
        nbytes = rows * columns * BITS[self.scale_dtype] // 8
        return Tensor(self.scale_name, self.scale_dtype, (rows, columns), self.target.tensor.offset_bytes, nbytes)

    def values_in(self, piece: memoryview) -> Values:
        """The values, [n], of a piece of the source."""
        return np.frombuffer(piece, dtype=_ELEMENTS[self.dtype])


class Scaled(NamedTuple):
    """A weight whose scales are known: float32 of `grid.scale_shape`; None without a grid."""

    weight: Weight
    scales: NDArray[np.float32] | None

    @property
    def scale_bytes(self) -> bytes:
        return b"" if self.scales is None else stored(self.scales, self.weight.scale_dtype)

    def encode(self, values: Values, first_value: int) -> Codes:
        """The FP8 numbers, [n], for a run of the weight's values, [n], that begins at its `first_value`th, anywhere in
        a row."""
        codes: Codes = np.empty(values.size, np.uint8)
        columns = self.weight.unit_columns
        begin = 0
        for end in _ends(values.size, -first_value % columns, columns):
            self._encode_units(values[begin:end], codes[begin:end], (first_value + begin) // columns)
            begin = end
        return codes

    def scales_of(self, first_unit: int, count: int) -> NDArray[np.float32] | None:
        """The scale of each of `count` runs of `unit_columns` values, in file order from the `first_unit`th on."""
        grid = self.weight.grid
        return None if grid is None or self.scales is None else grid.for_units(self.scales, first_unit, count)

    def _encode_units(self, values: Values, codes: Codes, first_unit: int) -> None:
        """Whole units, or a part of one."""
        columns = min(values.size, self.weight.unit_columns)
        blocks = values.reshape(-1, columns)
        scales = self.scales_of(first_unit, len(blocks))
        kernels().encode(
            blocks, self.weight.dtype, codes.reshape(-1, columns), self.weight.fp8, scales=scales, threads=1
        )


def _ends(size: int, head: int, columns: int) -> list[int]:
    """Where to cut a run of `size` values so that the rest of a unit, `head` values, whole units and the begin of a
    unit stand alone."""
    head = min(head, size)
    tail = size - (size - head) % columns
    return sorted({head, tail, size} - {0})
