"""What kernels ask of their arguments. Every check raises UsageError; a kernel that is reached trusts what it gets."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import UsageError
from coldctl.kernels.formats import NONFINITE

Values = NDArray[Any]
Bytes = bytes | bytearray | memoryview | NDArray[Any]

_MOST_THREADS = 64
_LEAST_BYTES_PER_THREAD = 1 << 18


def one_of(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"kernels do not know the dtype {name!r} here", hint=f"one of {', '.join(known)}")


def values(what: str, array: Values, dtype: str) -> None:
    """An array [rows, columns] of elements as wide as `dtype`."""
    width_bytes = NONFINITE[dtype].width_bytes
    if array.ndim != 2 or array.itemsize != width_bytes or not array.dtype.isnative:
        raise _misfit(what, array, f"[rows, columns] of {dtype}, {width_bytes} bytes each")
    _contiguous(what, array)


def codes(what: str, array: NDArray[np.uint8]) -> None:
    if array.ndim != 2 or array.dtype != np.uint8:
        raise _misfit(what, array, "[rows, columns] of uint8")
    _contiguous(what, array)


def per_row(what: str, array: NDArray[np.float32], rows: int) -> None:
    if array.shape != (rows,) or array.dtype != np.float32 or not array.dtype.isnative:
        raise _misfit(what, array, f"[{rows}] of float32")
    _contiguous(what, array)


def row_numbers(array: NDArray[np.int64], stored_rows: int) -> None:
    """An array of int64 in [0, `stored_rows`)."""
    if array.ndim != 1 or array.dtype != np.int64 or not array.dtype.isnative:
        raise _misfit("rows", array, "[n] of int64")
    _contiguous("rows", array)
    if array.size and (array.min() < 0 or array.max() >= stored_rows):
        wrong = array[(array < 0) | (array >= stored_rows)][0]
        raise UsageError(f"there is no row {wrong}", hint=f"rows are numbered from 0 to {stored_rows - 1}")


def same_shape(what: str, array: Values, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise _misfit(what, array, str(list(shape)))


def writable(what: str, array: Values) -> None:
    if not array.flags.writeable:
        raise UsageError(f"{what} cannot be written to")


def as_bytes(data: Bytes) -> NDArray[np.uint8]:
    """`data`, a contiguous buffer, as its bytes, not copied."""
    try:
        return np.frombuffer(data, dtype=np.uint8)
    except (BufferError, ValueError) as error:
        raise UsageError(f"kernels need bytes that lie together: {error}") from error


def threads(asked: int | None, nbytes: int) -> int:
    """How many to use for `nbytes`: no more than `asked` for or than there are CPUs, and few for little."""
    if asked is not None and asked < 1:
        raise UsageError(f"{asked} threads compute nothing", hint="one or more")
    allowed = len(os.sched_getaffinity(0)) if asked is None else asked
    return max(1, min(allowed, _MOST_THREADS, nbytes // _LEAST_BYTES_PER_THREAD))


def _contiguous(what: str, array: Values) -> None:
    if not array.flags.c_contiguous:
        raise UsageError(f"{what} must be C-contiguous", hint="pass a copy")


def _misfit(what: str, array: Values, expected: str) -> UsageError:
    return UsageError(f"{what} is {list(array.shape)} of {array.dtype}, expected {expected}")
