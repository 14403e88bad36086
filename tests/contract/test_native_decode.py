"""From FP8: every implementation against torch, ml_dtypes and the definition of the formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coldctl.errors import UsageError
from coldctl.kernels.base import Kernels
from tests.kernels import (
    BITS,
    ML_DTYPES,
    MOST,
    SCALES,
    TORCH,
    Array,
    all_codes,
    every_kernels,
    in_torch,
    name_of,
    value_of_code,
)

each = pytest.mark.parametrize("under_test", every_kernels(), ids=name_of)
each_fp8 = pytest.mark.parametrize("fp8", MOST)
each_dtype = pytest.mark.parametrize("dtype", ["BF16", "F32"])

NAN = {"BF16": 0x7FC0, "F32": 0x7FC00000}
NOT_A_NUMBER = {"F8_E4M3": [0x7F, 0xFF], "F8_E5M2": [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]}


def decoded(
    under_test: Kernels, codes: Array, fp8: str, dtype: str, scales: Array | None = None, rows: Array | None = None
) -> Array:
    shape = (codes.shape[0] if rows is None else len(rows), codes.shape[1])
    values = np.full(shape, 0xAAAA, dtype=BITS[dtype])
    under_test.decode(codes, fp8, values, dtype, scales=scales, rows=rows)
    return values


def with_one_nan(bits: Array, dtype: str) -> Array:
    """Which NaN an oracle makes depends on it and on the processor."""
    return np.where(np.isnan(bits.view(ML_DTYPES[dtype]).astype(np.float32)), NAN[dtype], bits)


def torch_values(codes: Array, fp8: str, dtype: str, scales: Array | None) -> Array:
    products = in_torch(codes, fp8).to(torch.float32)
    if scales is not None:
        products = products * torch.from_numpy(scales)[:, None]
    signed = torch.int16 if dtype == "BF16" else torch.int32
    return with_one_nan(products.to(TORCH[dtype]).view(signed).numpy().view(BITS[dtype]), dtype)


def ml_dtypes_values(codes: Array, fp8: str, dtype: str, scales: Array | None) -> Array:
    with np.errstate(all="ignore"):
        products = codes.view(ML_DTYPES[fp8]).astype(np.float32)
        if scales is not None:
            products = products * scales[:, None]
        return with_one_nan(products.astype(ML_DTYPES[dtype]).view(BITS[dtype]), dtype)


def random_codes(shape: tuple[int, int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@each
@each_fp8
@each_dtype
@pytest.mark.parametrize("scale", [None, *SCALES])
def test_every_code_becomes_what_the_oracles_say(
    under_test: Kernels, fp8: str, dtype: str, scale: float | None
) -> None:
    scales = None if scale is None else np.array([scale], dtype=np.float32)
    found = decoded(under_test, all_codes(), fp8, dtype, scales)
    np.testing.assert_array_equal(found, torch_values(all_codes(), fp8, dtype, scales))
    np.testing.assert_array_equal(found, ml_dtypes_values(all_codes(), fp8, dtype, scales))


@each
@each_fp8
def test_every_code_has_the_value_that_the_format_defines(under_test: Kernels, fp8: str) -> None:
    values = decoded(under_test, all_codes(), fp8, "F32")[0]
    nonfinite = {*NOT_A_NUMBER[fp8], *([0x7C, 0xFC] if fp8 == "F8_E5M2" else [])}
    for code in set(range(256)) - nonfinite:
        assert values[code] == np.float32(value_of_code(code, fp8)).view(np.uint32), code
    assert {int(values[code]) for code in NOT_A_NUMBER[fp8]} == {0x7FC00000}
    if fp8 == "F8_E5M2":
        assert (values[0x7C], values[0xFC]) == (0x7F800000, 0xFF800000)


@each
@each_fp8
@each_dtype
def test_each_row_has_its_own_scale(under_test: Kernels, fp8: str, dtype: str) -> None:
    codes = random_codes((500, 259))
    scales = np.random.default_rng(1).lognormal(sigma=9, size=500).astype(np.float32)
    np.testing.assert_array_equal(
        decoded(under_test, codes, fp8, dtype, scales), torch_values(codes, fp8, dtype, scales)
    )


@each
@each_dtype
@pytest.mark.parametrize("columns", [*range(19), 31, 32, 33, 63, 64, 65, 127, 129, 255])
def test_any_length_at_any_address_and_nothing_beside_it(under_test: Kernels, dtype: str, columns: int) -> None:
    codes = random_codes((3, columns), seed=columns)
    scales = np.array([0.3, 1.0, 17.0], dtype=np.float32)
    expected = torch_values(codes, "F8_E4M3", dtype, scales) if columns else codes.astype(BITS[dtype])
    width = np.dtype(BITS[dtype]).itemsize
    for offset in range(1, 4):
        shifted = np.frombuffer(bytes(offset) + codes.tobytes(), dtype=np.uint8, offset=offset).reshape(3, columns)
        around = np.full(3 * columns * width + 8, 0xAA, dtype=np.uint8)
        values = around[offset : offset + 3 * columns * width].view(BITS[dtype]).reshape(3, columns)
        under_test.decode(shifted, "F8_E4M3", values, dtype, scales=scales)
        np.testing.assert_array_equal(values, expected)
        assert set(around[:offset]) | set(around[offset + 3 * columns * width :]) == {0xAA}


@each
@each_dtype
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("numbers", [[], [0], [4], [2, 2, 0, 4, 2, 1], list(range(5)) * 100], ids=len)
def test_gathered_rows_are_those_of_the_whole(
    under_test: Kernels, dtype: str, scaled: bool, numbers: list[int]
) -> None:
    codes = random_codes((5, 37))
    scales = np.array([1, 0.5, 0.37, 1e-40, 3e38], dtype=np.float32) if scaled else None
    rows = np.array(numbers, dtype=np.int64)
    found = decoded(under_test, codes, "F8_E4M3", dtype, scales, rows)
    np.testing.assert_array_equal(found, torch_values(codes, "F8_E4M3", dtype, scales)[rows])


@each
@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**63)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_that_is_not_there_is_named_and_nothing_is_written(under_test: Kernels, wrong: int, place: int) -> None:
    rows = np.array([1, 1, 1], dtype=np.int64)
    rows[place] = wrong
    values = np.full((3, 4), 0xAAAA, dtype=np.uint16)
    with pytest.raises(UsageError, match=f"no row {wrong}$"):
        under_test.decode(random_codes((5, 4)), "F8_E4M3", values, "BF16", rows=rows)
    assert np.unique(values).tolist() == [0xAAAA]


@each
@pytest.mark.parametrize("threads", [1, 2, 5, None])
@pytest.mark.parametrize("gathered", [True, False])
def test_threads_change_nothing(under_test: Kernels, threads: int | None, gathered: bool) -> None:
    codes, scales = random_codes((997, 1033)), np.linspace(0.1, 2, 997, dtype=np.float32)
    rows = np.random.default_rng(3).integers(0, 997, 1500) if gathered else np.arange(997)
    values = np.empty((len(rows), 1033), dtype=np.uint16)
    under_test.decode(codes, "F8_E4M3", values, "BF16", scales=scales, rows=rows if gathered else None, threads=threads)
    np.testing.assert_array_equal(values, torch_values(codes, "F8_E4M3", "BF16", scales)[rows])


CODES_2x3 = np.zeros((2, 3), dtype=np.uint8)
BF16_2x3 = np.zeros((2, 3), dtype=np.uint16)


@each
@pytest.mark.parametrize(
    ("codes", "fp8", "values", "dtype", "scales", "rows"),
    [
        (CODES_2x3, "F8_E8M0", BF16_2x3, "BF16", None, None),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "F16", None, None),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "F32", None, None),
        (CODES_2x3.reshape(6), "F8_E4M3", BF16_2x3, "BF16", None, None),
        (CODES_2x3.view(np.int8), "F8_E4M3", BF16_2x3, "BF16", None, None),
        (CODES_2x3, "F8_E4M3", np.zeros((3, 3), np.uint16), "BF16", None, None),
        (CODES_2x3, "F8_E4M3", np.zeros((2, 4), np.uint16), "BF16", None, None),
        (CODES_2x3, "F8_E4M3", np.zeros((2, 6), np.uint16)[:, ::2], "BF16", None, None),
        (CODES_2x3, "F8_E4M3", np.frombuffer(bytes(12), np.uint16).reshape(2, 3), "BF16", None, None),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "BF16", np.ones(1, np.float32), None),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "BF16", None, np.zeros(3, np.int64)),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "BF16", None, np.zeros(2, np.int32)),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "BF16", None, np.zeros((2, 1), np.int64)),
        (CODES_2x3, "F8_E4M3", BF16_2x3, "BF16", None, np.zeros(4, np.int64)[::2]),
        (CODES_2x3[:0], "F8_E4M3", BF16_2x3, "BF16", None, np.zeros(2, np.int64)),
    ],
)
def test_what_does_not_fit_is_refused(
    under_test: Kernels, codes: Array, fp8: str, values: Array, dtype: str, scales: Array | None, rows: Array | None
) -> None:
    with pytest.raises(UsageError):
        under_test.decode(codes, fp8, values, dtype, scales=scales, rows=rows)
