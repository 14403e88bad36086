"""coldctl.loader.load.transform: FP8 weights times scales, against values worked out from the formats' definitions."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coldctl.errors import EnvironmentLacksError, InputError, UsageError
from coldctl.loader.load.transform import Dequantise, transformed

Codes = NDArray[np.uint8]
Values = NDArray[np.float64]


def decoded(code: int, *, exponent_bits: int, bias: int) -> float:
    """A finite number of 8 bits: sign, exponent, mantissa; numbers with exponent 0 are subnormal."""
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if code & 0x80 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias)
    return sign * math.ldexp(1 + mantissa, exponent - bias)


def e4m3(code: int) -> float:
    return math.nan if code & 0x7F == 0x7F else decoded(code, exponent_bits=4, bias=7)


def e5m2(code: int) -> float:
    if code & 0x7F > 0x7C:
        return math.nan
    if code & 0x7F == 0x7C:
        return -math.inf if code & 0x80 else math.inf
    return decoded(code, exponent_bits=5, bias=15)


def e4m3fnuz(code: int) -> float:
    return math.nan if code == 0x80 else decoded(code, exponent_bits=4, bias=8)


def e5m2fnuz(code: int) -> float:
    return math.nan if code == 0x80 else decoded(code, exponent_bits=5, bias=16)


E4M3 = np.array([e4m3(code) for code in range(256)])


def as_e4m3(codes: Codes) -> torch.Tensor:
    return torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)


def some_codes(*shape: int) -> Codes:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


def some_scales(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).uniform(1e-4, 3.0, shape).astype(np.float32))


def assert_is_bf16_of(result: torch.Tensor, exact: Values) -> None:
    """`exact` rounded to float32, and that to BF16, to nearest and ties to even, bit for bit; any NaN is as good."""
    assert result.dtype is torch.bfloat16
    assert tuple(result.shape) == exact.shape
    got = result.view(torch.int16).numpy().view(np.uint16)
    bits = exact.astype(np.float32).view(np.uint32).astype(np.uint64)
    expected = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    nan = np.isnan(exact)
    assert np.array_equal(got[~nan], expected[~nan])
    assert torch.isnan(result).numpy()[nan].all()


def dequantised(weight: torch.Tensor, scale: torch.Tensor, dtype: str = "BF16", suffix: str = "_scale") -> torch.Tensor:
    loaded = {"w": weight, f"w{suffix}": scale}
    result = transformed(loaded, "w", Dequantise(dtype))
    assert isinstance(result, torch.Tensor)
    return result


def test_the_table_has_the_known_extremes_of_e4m3() -> None:
    assert E4M3[0b0_1111_110] == 448.0
    assert E4M3[0b0_0000_001] == 2.0**-9
    assert E4M3[0b1_0111_000] == -1.0
    assert np.flatnonzero(np.isnan(E4M3)).tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_scale_for_the_tensor(shape: tuple[int, ...], suffix: str) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    scale = torch.tensor(0.0123, dtype=torch.float32).reshape(shape)
    result = dequantised(as_e4m3(codes), scale, suffix=suffix)
    assert_is_bf16_of(result, E4M3[codes] * float(np.float32(0.0123)))


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
def test_one_scale_for_each_row(shape: tuple[int, ...]) -> None:
    codes, scale = some_codes(300, 70), some_scales(*shape)
    assert_is_bf16_of(dequantised(as_e4m3(codes), scale), E4M3[codes] * scale.double().numpy().reshape(300, 1))


@pytest.mark.parametrize(("rows", "columns"), [(256, 128), (300, 200), (1, 300), (129, 127), (128, 1), (5, 7)])
def test_one_scale_for_each_block_of_128_by_128_with_edges_that_are_not_whole(rows: int, columns: int) -> None:
    codes = some_codes(rows, columns)
    scale = some_scales(-(-rows // 128), -(-columns // 128))
    exact = np.empty((rows, columns))
    for row in range(rows):
        for column in range(columns):
            exact[row, column] = E4M3[codes[row, column]] * scale[row // 128, column // 128].item()
    assert_is_bf16_of(dequantised(as_e4m3(codes), scale, suffix="_scale_inv"), exact)


def test_a_weight_of_three_dimensions_has_a_row_for_each_index_of_the_first_two() -> None:
    codes, scale = some_codes(3, 130, 8), some_scales(3, 130, 1)
    assert_is_bf16_of(dequantised(as_e4m3(codes), scale), E4M3[codes] * scale.double().numpy())


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (300,), ()])
def test_weights_of_unusual_shapes(shape: tuple[int, ...]) -> None:
    codes = some_codes(*shape).reshape(shape)
    assert_is_bf16_of(dequantised(as_e4m3(codes), torch.tensor(2.0)), E4M3[codes] * 2.0)


@pytest.mark.parametrize(
    ("dtype", "decode"),
    [
        (torch.float8_e5m2, e5m2),
        (torch.float8_e4m3fnuz, e4m3fnuz),
        (torch.float8_e5m2fnuz, e5m2fnuz),
    ],
)
def test_the_other_fp8_dtypes_of_weights(dtype: torch.dtype, decode: Any) -> None:
    weight = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(2, 128)
    exact = np.array([decode(code) for code in range(256)]).reshape(2, 128) * 0.75
    assert_is_bf16_of(dequantised(weight, torch.tensor(0.75)), exact)


def test_scales_that_are_powers_of_two_in_e8m0() -> None:
    codes = some_codes(130, 130)
    exponents = torch.tensor([[120, 127], [130, 125]], dtype=torch.uint8)
    exact = E4M3[codes] * np.exp2(exponents.numpy().astype(np.float64) - 127).repeat(128, 0).repeat(128, 1)[:130, :130]
    assert_is_bf16_of(dequantised(as_e4m3(codes), exponents.view(torch.float8_e8m0fnu), suffix="_scale_inv"), exact)


def test_with_bf16_scales_it_is_what_bf16_arithmetic_gives() -> None:
    weight, scale = as_e4m3(some_codes(200, 64)), some_scales(200, 1).to(torch.bfloat16)
    by_bf16 = weight.to(torch.bfloat16) * scale
    assert torch.equal(dequantised(weight, scale).nan_to_num(7.0), by_bf16.nan_to_num(7.0))


def test_other_dtypes_of_the_result() -> None:
    weight, scale = as_e4m3(np.array([[0x7E, 0x01]], np.uint8)), torch.tensor(1000.0)
    assert dequantised(weight, scale, "F32").tolist() == [[448000.0, 1000 * 2.0**-9]]
    half = dequantised(weight, scale, "F16")
    assert half.dtype is torch.float16
    assert half.tolist() == [[math.inf, 1000 * 2.0**-9]]  # 1.953125 has 7 significant bits


def test_what_has_no_scale_or_is_no_fp8_passes_as_the_same_object() -> None:
    loaded = {
        "bare": as_e4m3(some_codes(4, 4)),
        "packed": torch.zeros(4, 4, dtype=torch.uint8),
        "packed_scale": torch.ones(4, 1),
        "w": as_e4m3(some_codes(4, 4)),
        "w_scale": as_e4m3(some_codes(4, 1)),
        "norm": torch.ones(4, dtype=torch.bfloat16),
    }
    transform = Dequantise()
    unchanged = [name for name in loaded if transformed(loaded, name, transform) is loaded[name]]
    assert unchanged == ["bare", "packed", "packed_scale", "w_scale", "norm"]


def test_the_weight_and_its_scale_stay_as_they_were() -> None:
    codes, scale = some_codes(130, 130), some_scales(2, 2)
    weight, before = as_e4m3(codes), scale.clone()
    dequantised(weight, scale)
    assert np.array_equal(weight.view(torch.uint8).numpy(), codes)
    assert torch.equal(scale, before)


def test_the_companions_of_a_tensor_are_its_scales() -> None:
    names = {"a.weight", "a.weight_scale", "b.weight", "b.weight_scale_inv", "c.weight", "a.input_scale"}
    transform = Dequantise()
    assert transform.companions("a.weight", names) == ("a.weight_scale",)
    assert transform.companions("b.weight", names) == ("b.weight_scale_inv",)
    assert transform.companions("c.weight", names) == ()
    assert transform.companions("a.weight_scale", names) == ()


@pytest.mark.parametrize("shape", [(2,), (3, 3), (2, 3), (200,), (1, 200), (300, 200), (3, 2, 1)])
def test_a_scale_that_does_not_fit_is_an_error_with_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        dequantised(as_e4m3(some_codes(300, 200)), torch.ones(shape))
    assert caught.value.tensor == "w"
    for part in ("w_scale", str(list(shape)), "[300, 200]", "[300, 1]", "[3, 2]"):
        assert part in caught.value.message


def test_a_weight_of_three_dimensions_has_no_blocks() -> None:
    with pytest.raises(InputError, match=r"\[2, 1, 1\]"):
        dequantised(as_e4m3(some_codes(2, 128, 128)), torch.ones(2, 1, 1))


def test_a_scale_of_whole_numbers_is_an_error() -> None:
    with pytest.raises(InputError, match="uint8"):
        dequantised(as_e4m3(some_codes(4, 4)), torch.ones(4, 1, dtype=torch.uint8))


def test_two_scales_are_an_error() -> None:
    loaded = {"w": as_e4m3(some_codes(4, 4)), "w_scale": torch.ones(1), "w_scale_inv": torch.ones(1)}
    with pytest.raises(InputError, match="w_scale and w_scale_inv") as caught:
        transformed(loaded, "w", Dequantise())
    assert caught.value.tensor == "w"


def test_a_tensor_that_is_not_loaded() -> None:
    with pytest.raises(KeyError, match="w"):
        transformed({"v": torch.ones(1)}, "w", Dequantise())


def test_arrays_of_numpy_are_refused() -> None:
    with pytest.raises(UsageError, match="tensor w"):
        transformed({"w": np.zeros((2, 2), np.uint8)}, "w", Dequantise())


def test_only_dtypes_that_can_hold_the_values() -> None:
    with pytest.raises(UsageError, match="I8"):
        Dequantise("I8")


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentLacksError, match="torch"):
        Dequantise()
