"""The kernels in numpy: what runs where nothing was compiled, and what the compiled ones are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coldctl.kernels.base import Codes, Kernels, Rows, Scales
from coldctl.kernels.checks import Values
from coldctl.kernels.plain.convert import decode, encode
from coldctl.kernels.plain.scan import finite_scan, row_amax
from coldctl.kernels.plain.sums import word_sums


class PlainKernels(Kernels):
    name = "plain"

    def _row_amax(self, values: Values, dtype: str, amax: Scales, threads: int) -> None:  # noqa: ARG002
        row_amax(values, dtype, amax)

    def _encode(self, values: Values, dtype: str, codes: Codes, fp8: str, scales: Scales | None, threads: int) -> None:  # noqa: ARG002
        encode(values, dtype, codes, fp8, scales)

    def _decode(
        self,
        codes: Codes,
        fp8: str,
        values: Values,
        dtype: str,
        scales: Scales | None,
        rows: Rows | None,
        threads: int,  # noqa: ARG002
    ) -> None:
        decode(codes, fp8, values, dtype, scales, rows)

    def _finite_scan(self, data: NDArray[np.uint8], dtype: str) -> tuple[int, int]:
        return finite_scan(data, dtype)

    def _word_sums(self, data: NDArray[np.uint8]) -> tuple[int, int]:
        return word_sums(data)
