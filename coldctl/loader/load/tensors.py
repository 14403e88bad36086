"""Bytes in memory as tensors of their dtypes: views of torch or numpy, never copies.

Neither torch nor numpy can compute with elements under a byte (F4, F6_E2M3, F6_E3M2): they come as their bytes, uint8,
the last dimension counted in bytes where a row is a whole number of them, else flat. numpy has no BF16 and FP8: these
come as unsigned integers of the same width that hold the bits.

A view keeps all of the memory under it alive, so one tensor that is kept of many holds them all, and torch.save of one
writes them all: clone it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import EnvironmentLacksError, UsageError
from coldctl.loader.format.dtypes import BITS
from coldctl.loader.load.place import WORD_BYTES
from coldctl.loader.load.wanted import Wanted

Tensor = Any
"""A torch.Tensor, or with numpy an NDArray. It is no union of the two, since those who load know which of them they get
and would have to prove it to their type checker at every use."""

Framework = Literal["torch", "numpy"]

_NAMES = {
    "BOOL": ("bool", "bool"),
    "F4": ("uint8", "uint8"),
    "F6_E2M3": ("uint8", "uint8"),
    "F6_E3M2": ("uint8", "uint8"),
    "U8": ("uint8", "uint8"),
    "I8": ("int8", "int8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E8M0": ("float8_e8m0fnu", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
    "I16": ("int16", "<i2"),
    "U16": ("uint16", "<u2"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "I32": ("int32", "<i4"),
    "U32": ("uint32", "<u4"),
    "F32": ("float32", "<f4"),
    "C64": ("complex64", "<c8"),
    "F64": ("float64", "<f8"),
    "I64": ("int64", "<i8"),
    "U64": ("uint64", "<u8"),
}
"""What torch and numpy call the dtypes of safetensors, or the bytes or bits of those that they do not have."""

_PACKED = frozenset(dtype for dtype, bits in BITS.items() if bits < 8)


def resolve_framework(asked: str = "auto") -> Framework:
    """The framework that tensors are made of: `auto` is torch where it can be imported, else numpy.

    Raises EnvironmentLacksError when torch is asked for and cannot be imported, UsageError for any other name.
    """
    if asked == "numpy":
        return "numpy"
    if asked not in ("auto", "torch"):
        raise UsageError(f"no such framework: {asked!r}", hint="one of auto, torch, numpy")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        if asked == "auto":
            return "numpy"
        raise EnvironmentLacksError(f"cannot import torch: {error}", hint="pip install coldctl[torch]") from error
    return "torch"


def torch_dtype(dtype: str) -> Any:
    """The torch.dtype of a safetensors dtype; uint8 for elements under a byte. KeyError for one that is not in BITS."""
    import torch

    return getattr(torch, _NAMES[dtype][0])


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a safetensors dtype, or that of its bits. KeyError for one that is not in BITS."""
    return np.dtype(_NAMES[dtype][1])


def torch_views(memory: Tensor, placed: Iterable[tuple[Wanted, int]]) -> dict[str, Tensor]:
    """The placed tensors, by name, as views on `memory`, a one-dimensional uint8 tensor on any device.

    Each has a version counter of its own and is no view to autograd: what is done to one, in place or by its gradient,
    touches no other. A tensor whose first byte is no multiple of its element's size can be had in host memory only.
    """
    # Views that autograd knows of take half as long again to make, and all of them share one version counter.
    from torch._C import _AutoDispatchBelowADInplaceOrView as NoViewTracking

    views = {}
    bases = _Bases(memory)
    with NoViewTracking():
        for wanted, at_bytes in placed:
            shape = wanted.shape if wanted.dtype not in _PACKED else _shape_in_bytes(wanted)
            past_word_bytes = at_bytes % WORD_BYTES if wanted.nbytes else 0
            as_strided, element_bytes, first_element = bases[wanted.dtype, past_word_bytes]
            views[wanted.name] = as_strided(shape, _row_major(shape), first_element + at_bytes // element_bytes)
    return views


def numpy_views(memory: NDArray[np.uint8], placed: Iterable[tuple[Wanted, int]]) -> dict[str, NDArray[Any]]:
    """The placed tensors, by name, as views on `memory`, a one-dimensional contiguous array; writable if that is."""
    dtypes = {dtype: numpy_dtype(dtype) for dtype in BITS}
    views = {}
    for wanted, at_bytes in placed:
        shape = wanted.shape if wanted.dtype not in _PACKED else _shape_in_bytes(wanted)
        views[wanted.name] = np.ndarray(shape, dtypes[wanted.dtype], memory, at_bytes)
    return views


class _Base(NamedTuple):
    """All of the memory as elements of one dtype, ready to be strided over. `first_element` is that of byte 0."""

    as_strided: Callable[[tuple[int, ...], tuple[int, ...], int], Tensor]
    element_bytes: int
    first_element: int


class _Bases(dict[tuple[str, int], _Base]):
    """The base for a dtype whose elements begin so many bytes past a word, made when it is first asked for."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory

    def __missing__(self, key: tuple[str, int]) -> _Base:
        import torch

        name, first_bytes = key
        dtype = torch_dtype(name)
        elements = (len(self._memory) - first_bytes) // dtype.itemsize
        if first_bytes % dtype.itemsize:
            base = torch.frombuffer(self._memory.numpy(), dtype=dtype, offset=first_bytes, count=elements)
        else:
            base = self._memory[first_bytes : first_bytes + elements * dtype.itemsize].view(dtype)
        first_element = base.storage_offset() - first_bytes // dtype.itemsize
        self[key] = _Base(base.as_strided, dtype.itemsize, first_element)
        return self[key]


def _shape_in_bytes(wanted: Wanted) -> tuple[int, ...]:
    """The shape of packed elements."""
    if not wanted.shape or wanted.shape[-1] * BITS[wanted.dtype] % 8:
        return (wanted.nbytes,)
    return (*wanted.shape[:-1], wanted.shape[-1] * BITS[wanted.dtype] // 8)


@lru_cache(maxsize=1024)
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
