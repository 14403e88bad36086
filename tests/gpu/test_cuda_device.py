"""coldctl.loader.device.cuda on a GPU: the contract of every device, and what only a CUDA device can get wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from coldctl.errors import EnvironmentLacksError, PinError
from coldctl.loader.device import cuda_pinned
from coldctl.loader.device.cuda import open_cuda
from coldctl.loader.device.cuda_pinned import PORTABLE, Registrar, TorchPinned
from coldctl.loader.device.protocol import Device
from tests.gpu.device_contract import MIB, DeviceContract, filled, mapped, some_bytes, waited_for, works, write


@pytest.fixture
def device(cuda: Device) -> Device:
    return cuda


class TestCuda(DeviceContract):
    pass


def test_a_device_is_named_as_torch_names_it(device: Device) -> None:
    assert device.name == "cuda:0"
    assert open_cuda("cuda").name == f"cuda:{torch.cuda.current_device()}"
    assert device.allocate(10).device == torch.device("cuda", 0)


def test_a_device_that_is_not_there_is_named_with_those_that_are(device: Device) -> None:
    count = torch.cuda.device_count()
    with pytest.raises(EnvironmentLacksError, match=rf"there is no cuda:{count}.*{device.name}"):
        open_cuda(f"cuda:{count}")


def test_lanes_are_known_not_to_help_on_hopper_only(device: Device) -> None:
    assert device.lanes_help is (False if torch.cuda.get_device_capability(0)[0] == 9 else None)


def test_memory_is_back_when_the_last_view_is_gone(device: Device) -> None:
    before_bytes = torch.cuda.memory_allocated(0)
    view = device.allocate(64 * MIB)[100:200]
    assert torch.cuda.memory_allocated(0) >= before_bytes + 64 * MIB
    del view
    assert torch.cuda.memory_allocated(0) == before_bytes


def test_torch_raises_an_error_that_nobody_cleared(device: Device, tmp_path: Path) -> None:
    address, close = mapped(write(tmp_path / "file", some_bytes(MIB)))
    close()
    assert int(torch.cuda.cudart().cudaHostRegister(address, MIB, PORTABLE)) != 0
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.ones(4, device=device.name).add_(1)
    works(device, device.stream())


@pytest.mark.parametrize("flags", [PORTABLE, cuda_pinned.READ_ONLY, 0xFFFF])
def test_a_refused_registration_clears_its_error(device: Device, tmp_path: Path, flags: int) -> None:
    address, close = mapped(write(tmp_path / "file", some_bytes(MIB)))
    close()
    with pytest.raises(PinError, match=r"cannot register 1048576 bytes .*\(\d+\)"):
        Registrar(0).register(address, MIB, flags)
    assert torch.ones(4, device=device.name).add_(1).tolist() == [2, 2, 2, 2]


def test_a_device_opened_in_inference_mode_clears_the_errors_of_other_threads(device: Device, tmp_path: Path) -> None:
    address, close = mapped(write(tmp_path / "file", some_bytes(MIB)))
    close()
    with torch.inference_mode():
        opened = open_cuda(device.name)

    def refused_and_then_computing() -> torch.Tensor:
        with pytest.raises(PinError):
            opened.register(address, MIB)
        return torch.ones(4, device=device.name).add_(1)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(refused_and_then_computing).result().tolist() == [2, 2, 2, 2]


def test_pinned_memory_is_unregistered_when_it_is_closed(device: Device) -> None:
    pinned = device.pin(MIB)
    assert pinned.how == "registered"
    pages = pinned.tensor
    pinned.close()
    registrar = Registrar(0)
    registrar.register(pages.data_ptr(), MIB, PORTABLE)  # the driver refuses what is registered already
    registrar.unregister(pages.data_ptr())


def test_pinned_memory_is_unregistered_when_it_is_forgotten(device: Device) -> None:
    pages = device.pin(MIB).tensor
    registrar = Registrar(0)
    registrar.register(pages.data_ptr(), MIB, PORTABLE)
    registrar.unregister(pages.data_ptr())


def test_memory_that_the_driver_does_not_register_is_pinned_by_torch(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_pinned, "PORTABLE", 0xFFFF)  # the driver refuses flags that it does not know
    content = some_bytes(MIB + 100)
    pinned, to, stream = device.pin(len(content)), device.allocate(len(content)), device.stream()
    assert pinned.how == "torch"
    filled(pinned.buffer, content)
    stream.copy(to, pinned.tensor)
    waited_for(stream.record())
    pinned.close()
    assert torch.equal(to.cpu(), content)


def test_torch_says_when_it_cannot_pin_either(device: Device) -> None:
    with pytest.raises(PinError, match=f"cannot pin {1 << 50} bytes"):
        TorchPinned(1 << 50)
    works(device, device.stream())


def test_fresh_memory_is_not_read_by_earlier_work_any_more(device: Device) -> None:
    """The allocator hands out a block as soon as the host has freed it, before kernels queued earlier have read it."""
    ones = torch.ones(64 * MIB, dtype=torch.int32, device=device.name)
    busy = torch.randn(4096, 4096, device=device.name)
    pinned, stream = device.pin(256 * MIB), device.stream()
    for _ in range(100):
        busy = busy @ busy
    total = ones.sum()
    address = ones.data_ptr()
    del ones
    to = device.allocate(256 * MIB - 4096)
    assert to.data_ptr() - address in range(4096), "this was to be the same memory"
    stream.copy(to, pinned.tensor[: len(to)])
    waited_for(stream.record())
    pinned.close()
    assert int(total) == 64 * MIB
