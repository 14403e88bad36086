"""The stand-in for a device keeps the contract that the real one keeps (tests/gpu/test_cuda_device.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.device_contract import DeviceContract
from tests.standin import StandIn


class TestStandIn(DeviceContract):
    @pytest.fixture
    def device(self) -> Iterator[StandIn]:
        device = StandIn()
        device.watch = True
        yield device
        assert device.violations == []
        assert (device.pinned.now_bytes, device.registered.now_bytes) == (0, 0)
