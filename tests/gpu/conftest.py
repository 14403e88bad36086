"""What tests on a GPU share. Without one they skip, with a reason that CI accepts."""

from __future__ import annotations

import pytest
import torch

from coldctl.loader.device.cuda import open_cuda
from coldctl.loader.device.protocol import Device


@pytest.fixture
def cuda() -> Device:
    if not torch.cuda.is_available():
        pytest.skip(f"no CUDA: torch {torch.__version__} sees no device")
    return open_cuda("cuda:0")
