"""Host memory that cannot be had is one clear error, whoever refused it."""

from __future__ import annotations

import numpy as np
import pytest

from coldctl.errors import OutOfMemoryError
from coldctl.loader.scratch import scratch, shortage


def test_scratch_begins_on_a_page_and_can_be_written() -> None:
    memory = scratch(10_000)
    assert len(memory) == 10_000
    assert np.frombuffer(memory, dtype=np.uint8).ctypes.data % 4096 == 0
    memory[9_999] = 7
    assert (memory[9_998], memory[9_999]) == (0, 7)


def test_scratch_that_the_kernel_refuses_is_an_error() -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"cannot get 1024\.0 TiB of host memory to read into: Cannot allocate"
    ) as caught:
        scratch(1 << 50)
    assert "ulimit -v" in str(caught.value.hint)


def test_what_numpy_cannot_get_is_an_error_with_its_place() -> None:
    with pytest.raises(OutOfMemoryError) as caught, shortage(stage="verify", file="f", tensor="t"):
        np.empty(1 << 50, dtype=np.uint8)
    assert (caught.value.stage, caught.value.file, caught.value.tensor) == ("verify", "f", "t")
    assert isinstance(caught.value.__cause__, MemoryError)


def test_the_place_of_an_error_that_knows_its_own_stays() -> None:
    with (
        pytest.raises(OutOfMemoryError) as caught,
        shortage(stage="read", file="outer", tensor="outer"),
        shortage(stage="allocate", file="inner", tensor="inner"),
    ):
        bytearray(1 << 60)
    assert (caught.value.stage, caught.value.file, caught.value.tensor) == ("allocate", "inner", "inner")
