"""The first pass: every target is read once, in strips of whole rows, for its scales and for what it would lose."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.errors import RefusedError
from coldctl.events import Events
from coldctl.fp8.loss import StripLoss, compare, total
from coldctl.fp8.scales import scales_for
from coldctl.fp8.weight import Scaled, Weight
from coldctl.kernels.checks import Values
from coldctl.kernels.plain.bits import into_float32
from coldctl.loader import reader
from coldctl.loader.format.header import Tensor
from coldctl.loader.plan import Segment
from coldctl.loader.source import Source
from coldctl.results.fp8 import TensorLoss
from coldctl.units import MIB, format_size

_STRIP_VALUES = 1 << 19
_LARGEST_STRIP_BYTES = 8 * MIB
_STRIPS_A_SEGMENT = 16


class Measured(NamedTuple):
    scaled: Scaled
    loss: TensorLoss


def measure(weights: list[Weight], events: Events) -> list[Measured]:
    """The scales of `weights` and their losses. Memory is a few strips a thread, and the scales.

    Raises RefusedError for rows that are too long for a strip, and what `reader.read` does.
    """
    piece_bytes = max(reader.PIECE_BYTES, *(_strip_rows(weight) * weight.row_bytes for weight in weights))
    measuring = _Measuring(weights)
    events.begin("measuring", sum(weight.target.tensor.nbytes for weight in weights))
    reader.read(_segments(weights), measuring, events, piece_bytes=piece_bytes)
    events.end()
    return [measuring.measured(weight) for weight in weights]


def _strip_rows(weight: Weight) -> int:
    """As many rows as make up about as many values as are best, and whole scales."""
    unit = weight.grid.rows if weight.grid else 1
    if unit * weight.row_bytes > _LARGEST_STRIP_BYTES:
        raise RefusedError(
            f"a row of tensor {weight.name} has {format_size(weight.row_bytes)}, and coldctl quantises {unit} at a time"
            f" of at most {format_size(_LARGEST_STRIP_BYTES)} together",
            hint="leave it as it is: choose others with --tensors",
        )
    return max(unit, _STRIP_VALUES // weight.shape[1] // unit * unit)


def _segments(weights: Iterable[Weight]) -> Iterator[Segment]:
    for weight in weights:
        strips = list(_strips(weight))
        for start in range(0, len(strips), _STRIPS_A_SEGMENT):
            some = tuple(strips[start : start + _STRIPS_A_SEGMENT])
            nbytes = some[-1].offset_bytes + some[-1].nbytes - some[0].offset_bytes
            yield Segment(weight.target.shard.source, some[0].offset_bytes, nbytes, some)


def _strips(weight: Weight) -> Iterator[Tensor]:
    """The weight as tensors of some of its rows."""
    rows, columns = weight.shape
    step = _strip_rows(weight)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        offset_bytes = weight.target.tensor.offset_bytes + start * weight.row_bytes
        yield Tensor(weight.name, weight.dtype, (count, columns), offset_bytes, count * weight.row_bytes)


class _Room(NamedTuple):
    """Where a strip's values, [rows, columns] in float32, stand before and after."""

    before: NDArray[np.float32]
    after: NDArray[np.float32]


class _Measuring:
    """A sink of strips."""

    def __init__(self, weights: list[Weight]) -> None:
        self._scaled = {weight.key: Scaled(weight, _no_scales_yet(weight)) for weight in weights}
        self._losses: dict[tuple[str, str], dict[int, StripLoss]] = {weight.key: {} for weight in weights}
        self._most_values = max(_strip_rows(weight) * weight.shape[1] for weight in weights)
        self._rooms = threading.local()

    def accept(self, source: Source, strip: Tensor, start_bytes: int, piece: memoryview) -> None:  # noqa: ARG002
        key = (source.name, strip.name)
        scaled = self._scaled[key]
        first_row = (strip.offset_bytes - scaled.weight.target.tensor.offset_bytes) // scaled.weight.row_bytes
        values = scaled.weight.values_in(piece).reshape(strip.shape)
        loss = _strip_loss(scaled, values, first_row, self._room(strip.shape))
        # A segment's strips come in order, from one thread: the sum of its losses is the same in every run.
        segment = first_row // (_strip_rows(scaled.weight) * _STRIPS_A_SEGMENT)
        before = self._losses[key].get(segment)
        self._losses[key][segment] = loss if before is None else total([before, loss])

    def _room(self, shape: tuple[int, ...]) -> _Room:
        """This thread's arrays for a strip, taken once: to map fresh memory for each takes longer than to fill it."""
        if not hasattr(self._rooms, "arrays"):
            self._rooms.arrays = [np.empty(self._most_values, np.float32) for _ in _Room._fields]
        return _Room(*(array[: math.prod(shape)].reshape(shape) for array in self._rooms.arrays))

    def measured(self, weight: Weight) -> Measured:
        scaled = self._scaled[weight.key]
        return Measured(scaled, _as_result(scaled, total(list(self._losses[weight.key].values()))))


def _no_scales_yet(weight: Weight) -> NDArray[np.float32] | None:
    return None if weight.grid is None else np.empty(weight.grid.scale_shape, np.float32)


def _strip_loss(scaled: Scaled, values: Values, first_row: int, room: _Room) -> StripLoss:
    """Fills in the strip's scales, and compares its values with what will be read."""
    weight = scaled.weight
    units = values.reshape(-1, weight.unit_columns)
    first_unit = first_row * weight.shape[1] // weight.unit_columns
    amax = np.empty(len(units), np.float32)
    kernels().row_amax(units, weight.dtype, amax, threads=1)
    if weight.grid is not None and scaled.scales is not None:
        fresh = scales_for(weight.grid.amax_of(amax), weight.most, weight.scale_dtype)
        first_scale_row = first_row // weight.grid.rows
        scaled.scales[first_scale_row : first_scale_row + len(fresh)] = fresh
    before, after = room
    into_float32(values, weight.dtype, before)
    _read_again(scaled, values, first_unit, after)
    nans, infinities = kernels().finite_scan(values.reshape(-1).view(np.uint8), weight.dtype)
    saturated = _saturated(scaled, before, amax, first_unit, infinities)
    if nans or infinities:
        before[bad := ~np.isfinite(before)] = 0
        after[bad] = 0
    amax_of_rows = amax.reshape(len(values), -1).max(axis=1)
    loss = compare(before, after, amax_of_rows, first_row)
    return loss._replace(saturated=saturated, nans=nans, infinities=infinities)


def _read_again(scaled: Scaled, values: Values, first_unit: int, after: NDArray[np.float32]) -> None:
    """What a reader makes of the FP8 numbers for a strip, in float32."""
    weight = scaled.weight
    units = scaled.encode(values.reshape(-1), first_unit * weight.unit_columns).reshape(-1, weight.unit_columns)
    scales = scaled.scales_of(first_unit, len(units))
    kernels().decode(units, weight.fp8, after.reshape(units.shape), "F32", scales=scales, threads=1)


def _saturated(
    scaled: Scaled, before: NDArray[np.float32], amax: NDArray[np.float32], first_unit: int, infinities: int
) -> int:
    """How many values are beyond the largest number of the format, times their scale."""
    scales = scaled.scales_of(first_unit, len(amax))
    limits = np.full(len(amax), scaled.weight.most, np.float32) if scales is None else scales * scaled.weight.most
    if not infinities and np.all(amax <= limits):
        return 0
    return int(np.count_nonzero(np.abs(before).reshape(len(amax), -1) > limits[:, np.newaxis]))


def _as_result(scaled: Scaled, loss: StripLoss) -> TensorLoss:
    weight = scaled.weight
    after = [weight.codes, *([weight.scale] if weight.scale else [])]
    return TensorLoss(
        name=weight.name,
        dtype=weight.dtype,
        shape=weight.shape,
        scale=weight.scale_name,
        relative_error=(loss.noise / loss.signal) ** 0.5 if loss.signal else 0.0,
        max_error=loss.max_error,
        flushed_share=loss.flushed / loss.values,
        flushed_rows=loss.flushed_rows,
        saturated_share=loss.saturated / loss.values,
        cosine_distance_mean=loss.distances / loss.directed_rows if loss.directed_rows else 0.0,
        cosine_distance_max=loss.worst[0].cosine_distance if loss.worst else 0.0,
        worst_rows=list(loss.worst),
        nans=loss.nans,
        infinities=loss.infinities,
        bytes_before=weight.target.tensor.nbytes,
        bytes_after=sum(tensor.nbytes for tensor in after),
    )
