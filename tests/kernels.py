"""The kernels under test, and what torch and ml_dtypes make of the same values."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.kernels.base import Kernels
from coldctl.kernels.compiled import CompiledKernels, levels
from coldctl.kernels.plain import PlainKernels

MOST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0}
TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
ML_DTYPES: dict[str, Any] = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
BITS: dict[str, Any] = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
SCALES = [1.0, 0.5, 2.0**-20, 2.0**100, 0.37, 3.0, 1 / 448, 0.0123, -0.7, 1e-40, 3e38, 0.0, np.inf, np.nan]

Array = NDArray[Any]


def compiled_kernels() -> list[Kernels]:
    """At every level that this processor has; none where COLDCTL_NATIVE or the installation leaves them out."""
    return [] if kernels().name == "plain" else [CompiledKernels(level) for level in levels()]


def every_kernels() -> list[Kernels]:
    return [PlainKernels(), *compiled_kernels()]


def name_of(under_test: Kernels) -> str:
    return under_test.name


def all_16_bits() -> Array:
    """Every BF16, or every F16. [256, 256]."""
    return np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)


def all_codes() -> Array:
    """[1, 256]."""
    return np.arange(256, dtype=np.uint8).reshape(1, 256)


def random_bits(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Values of `dtype` of all sizes, with subnormals, NaN and infinity among them."""
    width = np.iinfo(BITS[dtype]).max
    bits = np.random.default_rng(seed).integers(0, width, shape, dtype=BITS[dtype], endpoint=True)
    bits.flat[:: max(1, bits.size // 100)] &= width >> 10
    return bits


def as_float64(bits: Array, dtype: str) -> Array:
    with np.errstate(invalid="ignore"):
        values: Array = bits.view(ML_DTYPES[dtype]).astype(np.float64)
    return values


def as_float32(bits: Array, dtype: str) -> Array:
    with np.errstate(invalid="ignore"):
        values: Array = bits.view(ML_DTYPES[dtype]).astype(np.float32)
    return values


def in_torch(bits: Array, dtype: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(bits.tobytes()), dtype=TORCH[dtype]).reshape(bits.shape)


def torch_codes(bits: Array, dtype: str, fp8: str, scales: Array | None) -> Array:
    # From F16, torch 2.13 itself loses the sign of a NaN, and only among the last few values of a tensor.
    quotients = torch.from_numpy(as_float32(bits, dtype))
    if scales is not None:
        quotients = quotients / torch.from_numpy(scales)[:, None]
    codes: Array = quotients.clamp(-MOST[fp8], MOST[fp8]).to(TORCH[fp8]).view(torch.uint8).numpy()
    return codes


def ml_dtypes_codes(bits: Array, dtype: str, fp8: str, scales: Array | None) -> Array:
    with np.errstate(all="ignore"):
        quotients = as_float32(bits, dtype)
        if scales is not None:
            quotients = quotients / scales[:, None]
        codes: Array = quotients.clip(-MOST[fp8], MOST[fp8]).astype(ML_DTYPES[fp8]).view(np.uint8)
    return codes


def value_of_code(code: int, fp8: str) -> float:
    """By the definition of the format; NaN and infinity are not asked for."""
    mantissa_bits, bias = (3, 7) if fp8 == "F8_E4M3" else (2, 15)
    sign = -1 if code & 0x80 else 1
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, (code & 0x7F) % 2**mantissa_bits / 2**mantissa_bits
    return sign * (math.ldexp(mantissa, 1 - bias) if exponent == 0 else math.ldexp(1 + mantissa, exponent - bias))
