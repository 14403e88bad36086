"""What kernels compute, and the checks before they do. `plain` and `compiled` do the computing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import UsageError
from coldctl.kernels import checks
from coldctl.kernels.checks import Bytes, Values
from coldctl.kernels.formats import DECODED, FP8, NONFINITE, VALUES

Codes = NDArray[np.uint8]
Scales = NDArray[np.float32]
Rows = NDArray[np.int64]


class NonfiniteCounts(NamedTuple):
    """How many values are NaN, and how many are infinite, of either sign."""

    nans: int
    infinities: int


class Kernels(ABC):
    """Arithmetic on values that lie in memory as in a file: arrays of bits, with the safetensors name of their dtype.

    `Values` are arrays [rows, columns] whose elements are as wide as the dtype; numpy has no BF16, so its arrays
    may be of uint16. They may begin at any address, and are C-contiguous. Results go into arrays of the caller's.
    UsageError, before anything is read or written, for a dtype that is not known, and for arrays that do not fit.

    Rows are shared out over `threads` threads: the given number, or as many as the process has CPUs, and 64 at most.
    `plain` has but the caller's. Floats are rounded to nearest even.
    """

    name: str
    """What computes: `plain`, or the instruction set."""

    def row_amax(self, values: Values, dtype: str, amax: Scales, *, threads: int | None = None) -> None:
        """The largest magnitude among the finite values of each row, into float32 `amax` [rows].

        NaN and infinity count for nothing, lest one of them take its row's scale away: `finite_scan` finds them. A row
        without finite values, or without values, has 0.
        """
        checks.one_of(dtype, VALUES)
        checks.values("values", values, dtype)
        checks.per_row("amax", amax, values.shape[0])
        checks.writable("amax", amax)
        self._row_amax(values, dtype, amax, checks.threads(threads, values.nbytes))

    def encode(
        self,
        values: Values,
        dtype: str,
        codes: Codes,
        fp8: str,
        *,
        scales: Scales | None = None,
        threads: int | None = None,
    ) -> None:
        """`values` / `scales` as `fp8` (F8_E4M3 or F8_E5M2), into uint8 `codes` [rows, columns].

        The definition is torch's `(x.to(float32) / scale).clamp(-most, most).to(fp8)`, scale [rows] in float32: the
        quotient is rounded to float32, and that to FP8. Where it falls just beside the middle between two codes, the
        first rounding can move it there, so this is not always the code next to the exact quotient; whoever computes
        it in float32 gets the same. Without scales, or with powers of two, nothing is rounded twice.

        What is too large becomes ±448 or ±57344, infinity too, and NaN stays NaN with its sign (0 / 0 has the one that
        the processor gives it). Scales may be anything: by 0, values become ±most, and zeros NaN.
        """
        checks.one_of(dtype, VALUES)
        checks.one_of(fp8, FP8)
        checks.values("values", values, dtype)
        checks.codes("codes", codes)
        checks.same_shape("codes", codes, values.shape)
        checks.writable("codes", codes)
        if scales is not None:
            checks.per_row("scales", scales, values.shape[0])
        self._encode(values, dtype, codes, fp8, scales, checks.threads(threads, values.nbytes))

    def decode(
        self,
        codes: Codes,
        fp8: str,
        values: Values,
        dtype: str,
        *,
        scales: Scales | None = None,
        rows: Rows | None = None,
        threads: int | None = None,
    ) -> None:
        """`codes` [stored rows, columns] times `scales` [stored rows], in the dtype BF16 or F32, into `values`.

        The product is rounded to float32, and for BF16 once more; with E4M3, and a scale that BF16 can hold, float32
        holds it exactly. Every NaN becomes 0x7FC0 or 0x7FC00000, on every processor.

        `rows`, int64 [n], picks stored rows, in any order and more than once: `values` is [n, columns] then. UsageError
        for one that is not there.
        """
        checks.one_of(fp8, FP8)
        checks.one_of(dtype, DECODED)
        checks.codes("codes", codes)
        checks.values("values", values, dtype)
        stored_rows, columns = codes.shape
        if scales is not None:
            checks.per_row("scales", scales, stored_rows)
        if rows is not None:
            checks.row_numbers(rows, stored_rows)
        checks.same_shape("values", values, (stored_rows if rows is None else len(rows), columns))
        checks.writable("values", values)
        self._decode(codes, fp8, values, dtype, scales, rows, checks.threads(threads, values.nbytes))

    def finite_scan(self, data: Bytes, dtype: str) -> NonfiniteCounts:
        """How many values of `data`, the bytes of a tensor, are NaN, and how many infinite. Any float dtype of whole
        bytes; on the caller's thread."""
        checks.one_of(dtype, NONFINITE)
        flat = checks.as_bytes(data)
        if flat.size % NONFINITE[dtype].width_bytes:
            raise UsageError(f"{flat.size} bytes are no whole number of {dtype} values")
        return NonfiniteCounts(*self._finite_scan(flat, dtype))

    def word_sums(self, piece: Bytes, first_word: int) -> tuple[int, int]:
        """S1 = Σ w_i and S2 = Σ (i+1) w_i mod 2^64 over the little-endian words of `piece`, 64 bits each, numbered
        from `first_word`. A last word that is not whole is padded with zeros. On the caller's thread."""
        sum1, weighted = self._word_sums(checks.as_bytes(piece))
        return sum1 & _MASK, (weighted + first_word * sum1) & _MASK

    @abstractmethod
    def _row_amax(self, values: Values, dtype: str, amax: Scales, threads: int) -> None: ...

    @abstractmethod
    def _encode(
        self, values: Values, dtype: str, codes: Codes, fp8: str, scales: Scales | None, threads: int
    ) -> None: ...

    @abstractmethod
    def _decode(
        self,
        codes: Codes,
        fp8: str,
        values: Values,
        dtype: str,
        scales: Scales | None,
        rows: Rows | None,
        threads: int,
    ) -> None: ...

    @abstractmethod
    def _finite_scan(self, data: NDArray[np.uint8], dtype: str) -> tuple[int, int]: ...

    @abstractmethod
    def _word_sums(self, data: NDArray[np.uint8]) -> tuple[int, int]:
        """As if `first_word` were 0; congruent mod 2^64 is enough."""


_MASK = (1 << 64) - 1
