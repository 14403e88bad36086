"""Whether what was measured may be written."""

from __future__ import annotations

from collections.abc import Iterator

from coldctl.results.fp8 import TensorLoss


def objections(losses: list[TensorLoss], *, max_error: float, has_scales: bool, allow_nonfinite: bool) -> list[str]:
    """The reasons against it, tensor by tensor. Names in them are as the file has them."""
    return [
        f"tensor {loss.name}: {reason}"
        for loss in losses
        for reason in _reasons(loss, max_error, has_scales, allow_nonfinite)
    ]


def _reasons(loss: TensorLoss, max_error: float, has_scales: bool, allow_nonfinite: bool) -> Iterator[str]:
    if (loss.nans or loss.infinities) and not allow_nonfinite:
        yield f"{loss.nans:,} values are NaN and {loss.infinities:,} infinite"
    if loss.relative_error > max_error:
        yield f"its relative error would be {loss.relative_error:.4f}, and {max_error:g} is allowed"
    if loss.flushed_rows and not has_scales:
        yield f"{loss.flushed_rows:,} of its rows would become zero, for want of a scale"
    if loss.bytes_after >= loss.bytes_before:
        yield f"it would not get smaller: {loss.bytes_before:,} bytes before, {loss.bytes_after:,} after"
