"""coldctl.fp8.scales: the least scale that saturates nothing, in the dtype that it is stored in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.fp8.scales import Grid, scales_for, stored
from tests.fp8 import DTYPES

MOST = (448.0, 57344.0)
LARGEST = {"F32": float(np.finfo(np.float32).max), "F16": 65504.0, "BF16": float.fromhex("0x1.fep127")}
amaxes = st.floats(min_value=2.0**-149, max_value=float(np.finfo(np.float32).max), width=32)


def one_scale(amax: float, most: float, dtype: str) -> float:
    return float(scales_for(np.array([[amax]], np.float32), most, dtype)[0, 0])


def next_below(scale: float, dtype: str) -> float:
    bits = np.array([scale], DTYPES[dtype]).view(f"u{np.dtype(DTYPES[dtype]).itemsize}")
    return float((bits - 1).view(DTYPES[dtype])[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most", MOST)
@given(amax=amaxes)
def test_it_is_the_least_of_its_dtype_that_saturates_nothing(amax: float, most: float, dtype: str) -> None:
    scale = one_scale(amax, most, dtype)
    assert float(np.array(scale, DTYPES[dtype])) == scale > 0
    assert scale * most <= LARGEST[dtype]
    if amax < LARGEST[dtype] * 0.99:
        assert scale * most >= amax  # both sides exact in double precision
        assert next_below(scale, dtype) * most < amax


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_have_the_scale_1(dtype: str) -> None:
    assert one_scale(0.0, 448.0, dtype) == 1.0


def test_a_scale_of_f16_stays_so_small_that_448_of_it_are_finite() -> None:
    # 65504 / 448 = 146.21…; F16 has steps of 1/8 there, and 448 * 146.25 = 65520 rounds to infinity.
    assert one_scale(65504.0, 448.0, "F16") == 146.125


def test_known_quotients() -> None:
    assert one_scale(448.0, 448.0, "BF16") == 1.0
    assert one_scale(1.0, 448.0, "BF16") == float.fromhex("0x1.26p-9")  # 1/448 = 0x1.249249…p-9
    assert one_scale(1.0, 448.0, "F32") == float.fromhex("0x1.24924ap-9")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_stored_bytes_are_those_of_the_dtype(dtype: str) -> None:
    scales = scales_for(np.array([[0.3], [7.0], [0.0], [2.0**-130]], np.float32), 448.0, dtype)
    assert stored(scales, dtype) == scales.astype(DTYPES[dtype]).tobytes()


def test_a_row_has_its_scale_wherever_it_is_cut() -> None:
    grid = Grid((4, 10), 1, 10)
    assert grid.scale_shape == (4, 1)
    scales = np.array([[1], [2], [3], [4]], np.float32)
    assert grid.for_units(scales, 1, 3).tolist() == [2, 3, 4]


def test_a_block_has_its_scale_in_each_of_its_rows() -> None:
    grid = Grid((4, 6), 2, 3)
    amax = np.arange(8, dtype=np.float32)  # of 4 rows, two runs of 3 in each
    assert grid.scale_shape == (2, 2)
    assert grid.amax_of(amax).tolist() == [[2, 3], [6, 7]]
    scales = np.array([[1, 2], [3, 4]], np.float32)
    assert grid.for_units(scales, 0, 8).tolist() == [1, 2, 1, 2, 3, 4, 3, 4]
    assert grid.for_units(scales, 3, 2).tolist() == [2, 3]
