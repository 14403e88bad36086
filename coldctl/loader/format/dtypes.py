"""The dtypes of safetensors 0.8 and how many bits one element takes. Elements under a byte are packed."""

from __future__ import annotations

BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def natural_alignment_bytes(dtype: str) -> int:
    """The boundary that a processor wants one element of `dtype` on: its own size, a component's for complex
    numbers, and 1 for packed elements. Raises KeyError for a dtype that is not in BITS."""
    if dtype == "C64":
        return 4
    return max(1, BITS[dtype] // 8)
