"""The kernels in C (`native/`), called without the GIL."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import EnvironmentLacksError
from coldctl.kernels.base import Codes, Kernels, Rows, Scales
from coldctl.kernels.checks import Values
from coldctl.kernels.formats import FP8, NONFINITE, VALUES

LIBRARY = Path(__file__).with_name("libcoldctl.so")

LEVELS = ("portable", "avx2", "avx512")

_VALUES = {dtype: number for number, dtype in enumerate(VALUES)}
_FP8 = {dtype: number for number, dtype in enumerate(FP8)}
_SCANNED = {dtype: number for number, dtype in enumerate(NONFINITE)}

_ARGUMENTS = {
    "coldctl_row_amax": [c_int, c_int, c_void_p, c_int, c_int64, c_int64, c_void_p],
    "coldctl_encode": [c_int, c_int, c_void_p, c_int, c_int64, c_int64, c_void_p, c_int, c_void_p],
    "coldctl_decode": [c_int, c_int, c_void_p, c_int, c_int64, c_int64, c_void_p, c_void_p, c_int, c_void_p],
    "coldctl_finite_scan": [c_int, c_void_p, c_int, c_int64, POINTER(c_int64)],
    "coldctl_word_sums": [c_int, c_void_p, c_int64, POINTER(c_uint64)],
}


@cache
def library() -> ctypes.CDLL:
    """Raises EnvironmentLacksError where it is not there or cannot be loaded."""
    if not LIBRARY.exists():
        raise EnvironmentLacksError(
            "this coldctl has no compiled kernels", hint="install a C compiler, then coldctl again from its source"
        )
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError) as error:
        raise EnvironmentLacksError(
            f"the compiled kernels cannot be loaded: {error}", hint="install coldctl again from its source"
        ) from error
    return loaded


def levels() -> tuple[str, ...]:
    """The instruction sets that the kernels were compiled for and that this processor has, from the plainest on."""
    return LEVELS[: library().coldctl_levels()]


class CompiledKernels(Kernels):
    """The kernels at `level`, one of `levels()`."""

    def __init__(self, level: str) -> None:
        self.name = level
        self._level = levels().index(level)
        self._library = library()

    def _row_amax(self, values: Values, dtype: str, amax: Scales, threads: int) -> None:
        self._library.coldctl_row_amax(
            self._level, threads, _address(values), _VALUES[dtype], *values.shape, _address(amax)
        )

    def _encode(self, values: Values, dtype: str, codes: Codes, fp8: str, scales: Scales | None, threads: int) -> None:
        self._library.coldctl_encode(
            self._level,
            threads,
            _address(values),
            _VALUES[dtype],
            *values.shape,
            _address(scales),
            _FP8[fp8],
            _address(codes),
        )

    def _decode(
        self,
        codes: Codes,
        fp8: str,
        values: Values,
        dtype: str,
        scales: Scales | None,
        rows: Rows | None,
        threads: int,
    ) -> None:
        self._library.coldctl_decode(
            self._level,
            threads,
            _address(codes),
            _FP8[fp8],
            *values.shape,
            _address(scales),
            _address(rows),
            _VALUES[dtype],
            _address(values),
        )

    def _finite_scan(self, data: NDArray[np.uint8], dtype: str) -> tuple[int, int]:
        found = (c_int64 * 2)()
        count = data.size // NONFINITE[dtype].width_bytes
        self._library.coldctl_finite_scan(self._level, _address(data), _SCANNED[dtype], count, found)
        return found[0], found[1]

    def _word_sums(self, data: NDArray[np.uint8]) -> tuple[int, int]:
        found = (c_uint64 * 2)()
        self._library.coldctl_word_sums(self._level, _address(data), data.size, found)
        return found[0], found[1]


def _address(array: Values | None) -> int | None:
    return None if array is None else array.ctypes.data
