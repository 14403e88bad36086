"""The dtype table against the safetensors library itself."""

from __future__ import annotations

import json
import re

import pytest
import safetensors

from coldctl.loader.format.dtypes import BITS, natural_alignment_bytes


def one_tensor(dtype: str, elements: int, nbytes: int) -> bytes:
    entry = {"dtype": dtype, "shape": [elements], "data_offsets": [0, nbytes]}
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(nbytes)


def library_takes(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        return False
    return True


def test_knows_every_dtype_that_the_library_names() -> None:
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.deserialize(one_tensor("NONE_SUCH", 8, 8))  # type: ignore[no-untyped-call]
    _, _, expected = str(refused.value).partition("expected one of")
    assert set(BITS) == set(re.findall(r"`(\w+)`", expected))


@pytest.mark.parametrize("dtype", BITS)
def test_eight_elements_take_as_many_bytes_as_one_takes_bits(dtype: str) -> None:
    assert library_takes(one_tensor(dtype, 8, BITS[dtype]))
    assert not library_takes(one_tensor(dtype, 8, BITS[dtype] + 1))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("U8", 1),
        ("F4", 1),
        ("F6_E3M2", 1),
        ("BOOL", 1),
        ("F8_E8M0", 1),
        ("BF16", 2),
        ("F32", 4),
        ("C64", 4),
        ("I64", 8),
    ],
)
def test_natural_alignment(dtype: str, expected: int) -> None:
    assert natural_alignment_bytes(dtype) == expected


def test_no_alignment_for_an_unknown_dtype() -> None:
    with pytest.raises(KeyError):
        natural_alignment_bytes("F128")
