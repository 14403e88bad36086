"""coldctl.loader.device.cuda_pinned where there is no CUDA: the driver alone is played. (tests/gpu tests the rest.)"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coldctl.errors import PinError
from coldctl.loader.device import cuda_pinned
from coldctl.loader.device.cuda_pinned import PORTABLE, Registrar

_OUT_OF_MEMORY = 2


class RefusingDriver:
    """cudart that registers nothing."""

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: ARG002, N802
        return _OUT_OF_MEMORY


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device 0 whose memory is the host's and whose driver refuses; and no error of a copy is passed over."""
    zeros = torch.zeros

    def on_the_host(*sizes: Any, device: str, **options: Any) -> torch.Tensor:
        assert device == "cuda:0"
        return zeros(*sizes, device="cpu", **options)

    monkeypatch.setattr(cuda_pinned, "contextlib", SimpleNamespace(suppress=lambda _: contextlib.nullcontext()))
    monkeypatch.setattr(torch, "zeros", on_the_host)
    monkeypatch.setattr(torch.cuda, "cudart", RefusingDriver)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CudaError", lambda code: RuntimeError(f"error {code}"))


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize("mode", [True, False])
def test_a_refusal_is_followed_by_a_copy_on_the_device_whatever_mode_it_was_opened_in(mode: bool) -> None:
    """The copy is what clears the error. Another thread registers than the one that opened the device."""
    with torch.inference_mode(mode):
        registrar = Registrar(0)
        registrar._two_bytes[1] = 7
    with ThreadPoolExecutor(1) as pool, pytest.raises(PinError, match=r"cannot register 4096 bytes .*: error 2"):
        pool.submit(registrar.register, 4096, 4096, PORTABLE).result()
    assert registrar._two_bytes.tolist() == [7, 7]
