"""The largest magnitudes of rows, counts of what is not finite, and sums of words: every implementation."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from coldctl.errors import UsageError
from coldctl.kernels.base import Kernels
from tests.kernels import BITS, ML_DTYPES, Array, all_16_bits, as_float64, every_kernels, in_torch, name_of, random_bits

each = pytest.mark.parametrize("under_test", every_kernels(), ids=name_of)
each_dtype = pytest.mark.parametrize("dtype", BITS)

MIB = 1 << 20


def amax_of(under_test: Kernels, bits: Array, dtype: str, threads: int | None = None) -> Array:
    amax = np.full(bits.shape[0], np.nan, dtype=np.float32)
    under_test.row_amax(bits, dtype, amax, threads=threads)
    return amax


def torch_amax(bits: Array, dtype: str) -> Array:
    magnitudes = in_torch(bits, dtype).float().abs()
    amax: Array = magnitudes.where(torch.isfinite(magnitudes), 0).amax(dim=1).numpy()
    return amax


@each
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_the_magnitude_of_every_16_bit_value_is_its_own(under_test: Kernels, dtype: str) -> None:
    bits = all_16_bits().reshape(-1, 1)
    np.testing.assert_array_equal(amax_of(under_test, bits, dtype), torch_amax(bits, dtype))


@each
@each_dtype
@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 63, 64, 65, 1000])
def test_the_largest_finite_magnitude_of_each_row_is_found(under_test: Kernels, dtype: str, columns: int) -> None:
    bits = random_bits(dtype, (301, columns), seed=columns)
    shifted = np.frombuffer(b"x" + bits.tobytes(), dtype=BITS[dtype], offset=1).reshape(bits.shape)
    for threads in (1, 3, None):
        np.testing.assert_array_equal(amax_of(under_test, shifted, dtype, threads), torch_amax(bits, dtype))


@each
def test_nan_and_infinity_take_no_part_in_the_largest_magnitude(under_test: Kernels) -> None:
    nan, infinity = float("nan"), float("inf")
    rows = [[nan, -2.5, 1], [infinity, 1, -3e38], [nan, infinity, -infinity], [0.0, -0.0, -0.0], [1e-45, 0, -nan]]
    values = np.array(rows, dtype=np.float32)
    expected = np.array([2.5, 3e38, 0, 0, 1e-45], dtype=np.float32)
    np.testing.assert_array_equal(amax_of(under_test, values, "F32"), expected)
    assert amax_of(under_test, np.zeros((2, 0), np.float32), "F32").tolist() == [0, 0]
    assert amax_of(under_test, np.zeros((0, 2), np.float32), "F32").tolist() == []


def bits_that_count(dtype: str) -> tuple[Array, int, int]:
    """Every value of 8 or 16 bits, and wider ones around all borders: with how many are NaN and infinite."""
    width = np.dtype(ML_DTYPES[dtype]).itemsize
    if width <= 2:
        bits = np.arange(1 << (8 * width), dtype=f"u{width}")
    else:
        infinity = int(np.array(np.inf, dtype=ML_DTYPES[dtype]).view(f"u{width}"))
        sign = 1 << (8 * width - 1)
        borders = [0, 1, infinity - 1, infinity, infinity + 1, sign - 1]
        bits = np.array([*borders, *(sign | border for border in borders)] * 7, dtype=f"u{width}")
    values = as_float64(bits, dtype)
    return bits, int(np.isnan(values).sum()), int(np.isinf(values).sum())


@each
@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_what_is_not_finite_is_counted(under_test: Kernels, dtype: str) -> None:
    bits, nans, infinities = bits_that_count(dtype)
    assert nans > 0
    assert under_test.finite_scan(bits, dtype) == (nans, infinities)
    assert under_test.finite_scan(memoryview(b"x" + bits.tobytes() * 50)[1:], dtype) == (50 * nans, 50 * infinities)
    assert under_test.finite_scan(b"", dtype) == (0, 0)


@each
@pytest.mark.parametrize("dtype", ML_DTYPES)
@pytest.mark.parametrize("count", [1, 63, 4095, 4096, 4097, 70_000])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(under_test: Kernels, dtype: str, count: int) -> None:
    bits, _, _ = bits_that_count(dtype)
    is_nan = np.isnan(as_float64(bits, dtype))
    values = np.full(count, bits[1])
    assert under_test.finite_scan(values, dtype) == (0, 0)
    for place in {0, count // 2, count - 1, min(count - 1, 4096)}:
        values[place] = bits[is_nan][0]
        assert under_test.finite_scan(values, dtype) == (1, 0)
        values[place] = bits[1]


def by_hand(data: bytes, first_word: int) -> tuple[int, int]:
    padded = data + bytes(-len(data) % 8)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    weighted = sum(place * word for place, word in enumerate(words, start=first_word + 1))
    return sum(words) % 2**64, weighted % 2**64


@each
@pytest.mark.parametrize("first_word", [0, 1, 524_287, 2**40, 2**63])
def test_words_are_summed_up_whatever_their_number(under_test: Kernels, first_word: int) -> None:
    data = np.random.default_rng(7).bytes(300)
    for nbytes in range(260):
        for at in (0, 1, 7):
            piece = memoryview(data)[at : at + nbytes]
            assert under_test.word_sums(piece, first_word) == by_hand(bytes(piece), first_word)


@each
@pytest.mark.parametrize("nbytes", [4 * MIB, 4 * MIB - 3, 4 * MIB + 9, 5 * MIB])
def test_sums_of_large_pieces_wrap_around(under_test: Kernels, nbytes: int) -> None:
    assert under_test.word_sums(b"\xff" * nbytes, 3) == by_hand(b"\xff" * nbytes, 3)
    data = np.random.default_rng(8).bytes(nbytes)
    assert under_test.word_sums(data, 3) == by_hand(data, 3)


@each
def test_what_does_not_fit_is_refused(under_test: Kernels) -> None:
    bf16 = np.zeros((2, 3), dtype=np.uint16)
    unfit: list[Array] = [np.zeros(3, np.float32), np.zeros(2, np.float64), np.frombuffer(bytes(8), np.float32)]
    for amax in unfit:
        with pytest.raises(UsageError):
            under_test.row_amax(bf16, "BF16", amax)
    with pytest.raises(UsageError):
        under_test.row_amax(bf16, "F32", np.zeros(2, np.float32))
    with pytest.raises(UsageError):
        under_test.finite_scan(bytes(7), "F32")
    with pytest.raises(UsageError):
        under_test.finite_scan(bytes(8), "I64")
    with pytest.raises(UsageError):
        under_test.word_sums(np.zeros(8, np.uint8)[::2], 0)
