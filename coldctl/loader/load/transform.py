"""What is done to tensors between the file and whoever asked for them, on load or on demand.

A transform may need other tensors beside the one that it changes, such as its scale. `load(transform=…)` hands a tensor
out when they have arrived, too; `transformed` takes all of them from what is loaded.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from coldctl.errors import InputError, UsageError
from coldctl.loader.load.tensors import Tensor, resolve_framework, torch_dtype

_BLOCK = 128
_FROM = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_TO = ("BF16", "F16", "F32")

Shape = tuple[int, ...]


class Transform(Protocol):
    """A change of tensors, one at a time. Any thread may call either method."""

    def companions(self, name: str, names: Container[str]) -> tuple[str, ...]:
        """Which of `names`, all that are loaded, `apply` needs beside `name`."""

    def apply(self, name: str, tensor: Tensor, companions: Mapping[str, Tensor]) -> Tensor:
        """The tensor to hand out for `name`: a new one, or `tensor` itself. Neither it nor its companions change."""


def transformed(loaded: Mapping[str, Tensor], name: str, transform: Transform) -> Tensor:
    """The tensor `name` of `loaded`, transformed now. KeyError for a name that is not there."""
    companions = {other: loaded[other] for other in transform.companions(name, loaded)}
    return transform.apply(name, loaded[name], companions)


class Dequantise:
    """FP8 weights times their scales, in the dtype `BF16`, `F16` or `F32`. All other tensors pass as they are.

    The scale of `X` is `X_scale` or `X_scale_inv`; either is multiplied with, inverse or not. What it is for is said by
    its shape: [] or [1] for the tensor, [out] or [out, 1] for each row, [ceil(out / 128), ceil(in / 128)] for each
    block of 128 x 128, the last ones not whole. A weight of more than two dimensions has no blocks, and a row for each
    index of all but its last. An FP8 tensor without a scale is left alone, and the scales stay as loaded.

    The formula is dtype(float32(weight) * float32(scale)): DeepSeek-V3, inference/kernel.py, weight_dequant_kernel.
    compressed-tensors (quantization/lifecycle/forward.py, _dequantize) multiplies in the dtype of the scale. Where that
    is BF16 and so is the result, the bits are the same: E4M3 has 4 significant bits and BF16 has 8, so float32 holds
    the product exactly, and it is rounded once. What a dtype cannot hold becomes infinite.

    Needs torch (EnvironmentLacksError); UsageError for another dtype.
    """

    def __init__(self, dtype: str = "BF16") -> None:
        if dtype not in _TO:
            raise UsageError(f"cannot dequantise to {dtype!r}", hint=f"one of {', '.join(_TO)}")
        resolve_framework("torch")
        self._dtype = torch_dtype(dtype)
        self._weights = frozenset(map(torch_dtype, _FROM))

    def companions(self, name: str, names: Container[str]) -> tuple[str, ...]:
        return tuple(scale for scale in (f"{name}_scale", f"{name}_scale_inv") if scale in names)

    def apply(self, name: str, tensor: Tensor, companions: Mapping[str, Tensor]) -> Tensor:
        """Raises InputError, naming the tensor and both shapes, for a scale that does not fit, for one of whole
        numbers, and for two of them; UsageError for tensors that are not torch's."""
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"cannot dequantise tensor {name}: it is no torch tensor", hint="load with framework torch"
            )
        if tensor.dtype not in self._weights or not companions:
            return tensor
        scale = _only_scale(name, tensor, companions)
        result = torch.empty(tensor.shape, dtype=self._dtype, device=tensor.device)
        # A strip at a time: the float32 values of a whole weight would take four times its memory.
        strips = zip(_strips(result), _strips(tensor), _factors(tensor, scale), strict=True)
        for result_strip, strip, factor in strips:
            result_strip.copy_(strip.to(torch.float32) * factor)
        return result


def _only_scale(name: str, weight: Tensor, companions: Mapping[str, Tensor]) -> Tensor:
    (scale_name, scale), *others = companions.items()
    what = f"the scale {scale_name} of tensor {name}"
    if others:
        raise _misfit(name, f"tensor {name} has {1 + len(others)} scales, {' and '.join(companions)}, expected one")
    if not scale.is_floating_point():
        raise _misfit(name, f"{what} has the dtype {scale.dtype}, expected a floating-point one")
    fitting = [(), (1,), *_by_row(weight), *_by_block(weight)]
    if tuple(scale.shape) not in fitting:
        shapes = " or ".join(dict.fromkeys(str(list(shape)) for shape in fitting))
        raise _misfit(name, f"{what} has the shape {list(scale.shape)}, expected {shapes} for {list(weight.shape)}")
    return scale


def _misfit(name: str, message: str) -> InputError:
    error = InputError(message, hint="load without the transform: the checkpoint keeps its scales in another way")
    error.tensor = name
    return error


def _by_row(weight: Tensor) -> list[Shape]:
    rows = tuple(weight.shape[:-1])
    return [rows, (*rows, 1)]


def _by_block(weight: Tensor) -> list[Shape]:
    return [tuple(-(-extent // _BLOCK) for extent in weight.shape)] if weight.dim() == 2 else []


def _strips(tensor: Tensor) -> tuple[Tensor, ...]:
    """The rows of a contiguous tensor, 128 at a time."""
    import torch

    strips: tuple[Tensor, ...] = torch.atleast_2d(tensor).flatten(0, -2).split(_BLOCK)
    return strips


def _factors(weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """What each of the weight's strips is multiplied with: [rows or 1, columns or 1], float32."""
    import torch

    factors: tuple[Tensor, ...]
    if tuple(scale.shape) in _by_block(weight):
        factors = scale.to(torch.float32).repeat_interleave(_BLOCK, 1)[:, : weight.shape[1]].split(1)
    else:
        factors = scale.to(torch.float32).reshape(-1, 1).expand(weight.shape[:-1].numel(), 1).split(_BLOCK)
    return factors
