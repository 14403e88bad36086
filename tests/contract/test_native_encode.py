"""To FP8: every implementation against torch with an explicit clamp, ml_dtypes and the definition of the formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from coldctl.errors import UsageError
from coldctl.kernels.base import Kernels
from tests.kernels import (
    BITS,
    MOST,
    SCALES,
    Array,
    all_16_bits,
    compiled_kernels,
    every_kernels,
    ml_dtypes_codes,
    name_of,
    random_bits,
    torch_codes,
    value_of_code,
)

each = pytest.mark.parametrize("under_test", every_kernels(), ids=name_of)
each_fp8 = pytest.mark.parametrize("fp8", MOST)
each_dtype = pytest.mark.parametrize("dtype", BITS)


def encoded(under_test: Kernels, bits: Array, dtype: str, fp8: str, scales: Array | None = None) -> Array:
    codes = np.full(bits.shape, 0xAA, dtype=np.uint8)
    under_test.encode(bits, dtype, codes, fp8, scales=scales)
    return codes


def encoded_floats(under_test: Kernels, floats: Sequence[float | np.float32], fp8: str) -> list[int]:
    codes: list[int] = encoded(under_test, np.array([floats], dtype=np.float32), "F32", fp8)[0].tolist()
    return codes


def per_row(scale: float | None, rows: int) -> Array | None:
    return None if scale is None else np.full(rows, scale, dtype=np.float32)


def is_nan(codes: Array, fp8: str) -> Array:
    return (codes & 0x7F) > (0x7E if fp8 == "F8_E4M3" else 0x7C)


@each
@each_fp8
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("scale", [None, *SCALES])
def test_every_16_bit_value_becomes_what_the_oracles_say(
    under_test: Kernels, fp8: str, dtype: str, scale: float | None
) -> None:
    bits, scales = all_16_bits(), per_row(scale, 256)
    found = encoded(under_test, bits, dtype, fp8, scales)
    np.testing.assert_array_equal(found, torch_codes(bits, dtype, fp8, scales))
    second = ml_dtypes_codes(bits, dtype, fp8, scales)
    np.testing.assert_array_equal(is_nan(found, fp8), is_nan(second, fp8))
    np.testing.assert_array_equal(found[~is_nan(found, fp8)], second[~is_nan(found, fp8)])


@each
@each_fp8
@pytest.mark.parametrize("scale", [None, *SCALES])
def test_random_float32_of_all_sizes_becomes_what_torch_says(
    under_test: Kernels, fp8: str, scale: float | None
) -> None:
    bits, scales = random_bits("F32", (64, 1031)), per_row(scale, 64)
    np.testing.assert_array_equal(encoded(under_test, bits, "F32", fp8, scales), torch_codes(bits, "F32", fp8, scales))


@each
@each_fp8
@each_dtype
def test_each_row_has_its_own_scale(under_test: Kernels, fp8: str, dtype: str) -> None:
    bits = random_bits(dtype, (200, 257), seed=1)
    scales = np.random.default_rng(2).lognormal(sigma=9, size=200).astype(np.float32)
    np.testing.assert_array_equal(encoded(under_test, bits, dtype, fp8, scales), torch_codes(bits, dtype, fp8, scales))


@each
@each_fp8
def test_every_finite_code_survives_and_ties_go_to_the_even_code(under_test: Kernels, fp8: str) -> None:
    last = 0x7E if fp8 == "F8_E4M3" else 0x7B
    for sign in (0, 0x80):
        codes = [sign | code for code in range(last + 1)]
        values = [value_of_code(code, fp8) for code in codes]
        values[0] = -0.0 if sign else 0.0
        assert encoded_floats(under_test, values, fp8) == codes
        for code, value, following in zip(codes[:-1], values[:-1], values[1:], strict=True):
            middle = np.float32((value + following) / 2)
            toward, away = np.nextafter(middle, np.float32(value)), np.nextafter(middle, np.float32(following))
            even = code if code % 2 == 0 else code + 1
            assert encoded_floats(under_test, [toward, middle, away], fp8) == [code, even, code + 1]


@each
@pytest.mark.parametrize(("fp8", "code"), [("F8_E4M3", 0x7E), ("F8_E5M2", 0x7B)], ids=["448 in E4M3", "57344 in E5M2"])
def test_what_is_too_large_saturates_infinity_too(under_test: Kernels, fp8: str, code: int) -> None:
    most = MOST[fp8]
    large = [most, most * 1.0001, most * 1.04, most * 2, 3e38, float("inf")]
    assert encoded_floats(under_test, large, fp8) == [code] * 6
    assert encoded_floats(under_test, [-value for value in large], fp8) == [0x80 | code] * 6


@each
@each_fp8
def test_nan_keeps_its_sign_and_zero_rows_and_their_signs_stay_exact(under_test: Kernels, fp8: str) -> None:
    nans = np.array([[0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]], dtype=np.uint32)
    assert encoded(under_test, nans, "F32", fp8).tolist() == [[0x7F, 0xFF, 0x7F, 0xFF]]
    zeros = np.array([[0.0, -0.0, 1e-45, -1e-45]], dtype=np.float32)
    assert encoded(under_test, zeros, "F32", fp8).tolist() == [[0, 0x80, 0, 0x80]]


@each
def test_the_quotient_is_rounded_to_float32_before_it_is_rounded_to_fp8(under_test: Kernels) -> None:
    # (17 * 2^19 + 1) / (2^23 + 1) lies below the tie 17 / 16 by less than half a last place of float32, so that it is
    # rounded to the tie, and then to the even code 1.0. One more in the dividend is above it.
    scales = np.array([2.0**23 + 1], dtype=np.float32)
    dividends = np.array([[17 * 2.0**19 + 1, 17 * 2.0**19 + 2]], dtype=np.float32)
    quotients = dividends / scales
    assert quotients.tolist() == [[1.0625, 1.0625 + 2.0**-23]]
    assert encoded(under_test, dividends, "F32", "F8_E4M3", scales).tolist() == [[0x38, 0x39]]


@each
@each_dtype
@pytest.mark.parametrize("columns", [*range(19), 31, 32, 33, 63, 64, 65, 127, 129, 255])
def test_any_length_at_any_address_and_nothing_beside_it(under_test: Kernels, dtype: str, columns: int) -> None:
    bits = random_bits(dtype, (3, columns), seed=columns)
    scales = np.array([0.3, 1.0, 17.0], dtype=np.float32)
    expected = torch_codes(bits, dtype, "F8_E4M3", scales) if columns else bits.astype(np.uint8)
    for offset in range(1, 4):
        shifted = np.frombuffer(bytes(offset) + bits.tobytes(), dtype=BITS[dtype], offset=offset).reshape(3, columns)
        around = np.full(3 * columns + 8, 0xAA, dtype=np.uint8)
        codes = around[offset : offset + 3 * columns].reshape(3, columns)
        under_test.encode(shifted, dtype, codes, "F8_E4M3", scales=scales)
        np.testing.assert_array_equal(codes, expected)
        assert set(around[:offset]) | set(around[offset + 3 * columns :]) == {0xAA}


@each
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64, 1000, None])
@pytest.mark.parametrize("shape", [(1001, 1201), (2, 700_001), (1, 1_000_003)], ids=str)
def test_threads_change_nothing(under_test: Kernels, shape: tuple[int, int], threads: int | None) -> None:
    bits = random_bits("BF16", shape)
    scales = np.linspace(0.1, 2, shape[0], dtype=np.float32)
    codes = np.empty(shape, dtype=np.uint8)
    under_test.encode(bits, "BF16", codes, "F8_E4M3", scales=scales, threads=threads)
    np.testing.assert_array_equal(codes, torch_codes(bits, "BF16", "F8_E4M3", scales))


@pytest.fixture
def flushing() -> Iterator[None]:
    """Subnormals are zero to this thread, as `torch.set_flush_denormal(True)` of a server makes them."""
    if not torch.set_flush_denormal(True):
        raise RuntimeError("torch knows no way to do that here")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_kernels_keep_subnormals_where_the_caller_flushes_them(threads: int) -> None:
    bits = np.full((1024, 1024), 0x00000100, dtype=np.uint32)
    scales = np.full(1024, 0x00000200, dtype=np.uint32).view(np.float32)
    for under_test in compiled_kernels():
        codes = np.empty(bits.shape, dtype=np.uint8)
        under_test.encode(bits, "F32", codes, "F8_E4M3", scales=scales, threads=threads)
        assert np.unique(codes).tolist() == [0x30], under_test.name  # 2^8 / 2^9, in units of the smallest subnormal
    assert np.float32(1e-40) * np.float32(1) == 0 or not compiled_kernels(), "the caller's environment is back"


BF16_2x3 = np.zeros((2, 3), dtype=np.uint16)
CODES_2x3 = np.zeros((2, 3), dtype=np.uint8)
SCALES_2 = np.ones(2, dtype=np.float32)


@each
@pytest.mark.parametrize(
    ("values", "dtype", "codes", "fp8", "scales", "threads"),
    [
        (BF16_2x3, "I16", CODES_2x3, "F8_E4M3", None, 1),
        (BF16_2x3, "F64", CODES_2x3, "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3FNUZ", None, 1),
        (BF16_2x3, "F32", CODES_2x3, "F8_E4M3", None, 1),
        (BF16_2x3.astype(">u2"), "BF16", CODES_2x3, "F8_E4M3", None, 1),
        (BF16_2x3.reshape(6), "BF16", CODES_2x3, "F8_E4M3", None, 1),
        (np.zeros((2, 6), np.uint16)[:, ::2], "BF16", CODES_2x3, "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", np.zeros((3, 2), np.uint8), "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", np.zeros((2, 2), np.uint8), "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", BF16_2x3, "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", np.zeros((2, 6), np.uint8)[:, ::2], "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", np.frombuffer(bytes(6), np.uint8).reshape(2, 3), "F8_E4M3", None, 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", np.ones(3, np.float32), 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", np.ones((2, 1), np.float32), 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", np.ones(2, np.float64), 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", np.ones(4, np.float32)[::2], 1),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", SCALES_2, 0),
        (BF16_2x3, "BF16", CODES_2x3, "F8_E4M3", SCALES_2, -1),
    ],
)
def test_what_does_not_fit_is_refused(
    under_test: Kernels, values: Array, dtype: str, codes: Array, fp8: str, scales: Array | None, threads: int
) -> None:
    with pytest.raises(UsageError):
        under_test.encode(values, dtype, codes, fp8, scales=scales, threads=threads)
