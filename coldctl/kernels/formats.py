"""The number formats that kernels know, by their safetensors names, as bits."""

from __future__ import annotations

from typing import NamedTuple

BF16, F16, F32 = VALUES = ("BF16", "F16", "F32")
"""What is encoded. Decoded values are BF16 or F32."""

DECODED = (BF16, F32)


class Fp8(NamedTuple):
    """A float of 8 bits: sign, exponent, `mantissa_bits`. 2 ** `lowest` is its smallest normal number."""

    mantissa_bits: int
    lowest: int
    most: float


FP8 = {"F8_E4M3": Fp8(3, -6, 448.0), "F8_E5M2": Fp8(2, -14, 57344.0)}
"""OCP 8-bit Floating Point Specification (OFP8), revision 1.0, tables 1 and 2. This E4M3 has no infinity."""


class Nonfinite(NamedTuple):
    """Which values of a dtype are not finite: those whose bits, masked with `mask` and then flipped by `flip`, are
    `first` or more. The very first is infinity where `has_infinity`; all others are NaN."""

    width_bytes: int
    mask: int
    flip: int
    first: int
    has_infinity: bool


NONFINITE = {
    "BF16": Nonfinite(2, 0x7FFF, 0, 0x7F80, True),
    "F16": Nonfinite(2, 0x7FFF, 0, 0x7C00, True),
    "F32": Nonfinite(4, 0x7FFF_FFFF, 0, 0x7F80_0000, True),
    "F64": Nonfinite(8, 0x7FFF_FFFF_FFFF_FFFF, 0, 0x7FF0_0000_0000_0000, True),
    "F8_E4M3": Nonfinite(1, 0x7F, 0, 0x7F, False),
    "F8_E5M2": Nonfinite(1, 0x7F, 0, 0x7C, True),
    "F8_E4M3FNUZ": Nonfinite(1, 0xFF, 0x7F, 0xFF, False),
    "F8_E5M2FNUZ": Nonfinite(1, 0xFF, 0x7F, 0xFF, False),
    "F8_E8M0": Nonfinite(1, 0xFF, 0, 0xFF, False),
}
"""Of every dtype of safetensors that has such values and whose elements are whole bytes."""
