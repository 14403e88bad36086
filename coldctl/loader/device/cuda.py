"""A CUDA device, through torch.cuda alone. torch is imported when a device is opened.

torch's caching allocator ties memory to the stream that is current when it is allocated, and promises nothing to other
streams. The loader copies on streams of its own, so both ends of a tensor's life need care: see `CudaDevice._empty` for
the beginning and `CudaStream.copy` for the end.
"""

from __future__ import annotations

import re
from typing import Any

from coldctl.errors import EnvironmentLacksError, PinError, UsageError
from coldctl.loader.device.cuda_errors import first_line, translated
from coldctl.loader.device.cuda_pinned import RegisteredPinned, RegisteredRange, Registrar, TorchPinned
from coldctl.loader.device.cuda_stream import CudaStream
from coldctl.loader.device.protocol import Bytes, Device, Gds, Pinned, Registration
from coldctl.loader.syscalls import PAGE_BYTES

_HOPPER = 9


def open_cuda(name: str) -> Device:
    """The device `cuda:N`, or torch's current one for `cuda`, with its context made (about half a second at first).

    Raises UsageError for any other name, EnvironmentLacksError that says what is missing, DeviceError when the device
    is there and does not work.
    """
    wanted = re.fullmatch(r"cuda(?::(\d+))?", name)
    if wanted is None:
        raise UsageError(f"{name!r} is no CUDA device", hint="write cpu, cuda, or cuda:N for the device number N")
    torch = _torch_with_cuda(name)
    index = torch.cuda.current_device() if wanted[1] is None else int(wanted[1])
    count = torch.cuda.device_count()
    if index >= count:
        raise EnvironmentLacksError(
            f"there is no {name}: torch sees {', '.join(f'cuda:{each}' for each in range(count))}",
            hint="choose one of them, or check CUDA_VISIBLE_DEVICES",
        )
    return CudaDevice(torch, index)


def _torch_with_cuda(name: str) -> Any:
    try:
        import torch
    except (ImportError, OSError) as error:
        raise EnvironmentLacksError(
            f"{name} needs torch, which cannot be imported: {error}",
            hint="install torch 2.10 or newer, in a build with CUDA",
        ) from error
    if torch.version.cuda is None:
        raise EnvironmentLacksError(
            f"{name} needs torch with CUDA, and torch {torch.__version__} is a build without",
            hint="install a CUDA build of torch, or load to the device cpu",
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"there is no {name}: torch {torch.__version__} cannot use CUDA here: {first_line(error)}",
            hint="check that nvidia-smi lists the device (a container must be given it), and CUDA_VISIBLE_DEVICES",
        ) from error
    return torch


class CudaDevice:
    """See `coldctl.loader.device.protocol.Device`."""

    def __init__(self, torch: Any, index: int) -> None:
        self._torch = torch
        self._index = index
        self.name = f"cuda:{index}"
        with translated(f"use {self.name}"):
            self._registrar = Registrar(index)
            generation, _ = torch.cuda.get_device_capability(index)
        self.lanes_help: bool | None = False if generation == _HOPPER else None

    def allocate(self, nbytes: int) -> Bytes:
        """torch aligns to 512 bytes, so this takes up to 4095 bytes more to begin on a page."""
        memory = self._empty(nbytes, PAGE_BYTES - 1)
        skip_bytes = -memory.data_ptr() % PAGE_BYTES
        return memory[skip_bytes : skip_bytes + nbytes]

    def allocate_plainly(self, nbytes: int) -> Bytes:
        return self._empty(nbytes, 0)

    def _empty(self, nbytes: int, more_bytes: int) -> Bytes:
        """Device memory that no earlier work still uses.

        The allocator hands out memory that was freed by a host that runs ahead: kernels queued on the current stream
        may not have read it yet. Work on that stream comes after them by itself, copies on another stream do not.

        Tensors made in torch's inference mode may not be written outside it, and other threads are outside.
        """
        with translated(f"allocate {nbytes} bytes on {self.name}"), self._torch.inference_mode(False):
            memory = self._torch.empty(nbytes + more_bytes, dtype=self._torch.uint8, device=self.name)
            self._torch.cuda.current_stream(self._index).synchronize()
        return memory

    def pin(self, nbytes: int) -> Pinned:
        try:
            return RegisteredPinned(self._registrar, nbytes)
        except PinError:
            return TorchPinned(nbytes)

    def register(self, address: int, nbytes: int) -> Registration:
        return RegisteredRange(self._registrar, address, nbytes)

    def stream(self) -> CudaStream:
        with translated(f"make a stream on {self.name}"):
            return CudaStream(self.name)

    def copy_plainly(self, to: Bytes, source: Bytes) -> None:
        with translated(f"copy to {self.name}"):
            to.copy_(source)
        self.settle()

    def settle(self) -> None:
        with translated(f"wait for {self.name}"):
            self._torch.cuda.current_stream(self._index).synchronize()

    def gds(self) -> Gds:
        from coldctl.loader.device.cuda_gds import open_gds

        return open_gds(self)
