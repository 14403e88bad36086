"""Host memory that a CUDA device copies from in the background: registered by us, or pinned by torch.

Registered memory must be unregistered before it is unmapped. So each object here unregisters when it is closed, or else
when it is collected, and its mapping is never closed: it goes with the last tensor or memoryview on it, which cannot
be before. (torch.frombuffer does not stop mmap.close from pulling the memory away.)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref

from coldctl.errors import PinError
from coldctl.loader.device.cuda_errors import first_line
from coldctl.loader.device.protocol import Bytes
from coldctl.loader.syscalls import PAGE_BYTES

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device, not only the current one."""

READ_ONLY = 8
"""cudaHostRegisterReadOnly: the device only reads it. Mappings that cannot be written are refused without it."""


class Registrar:
    """cudaHostRegister and cudaHostUnregister for one device, through torch's own bindings."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self._index = index
        self._cudart = torch.cuda.cudart()
        with torch.inference_mode(False):  # what is made in that mode may not be written by threads outside it
            self._two_bytes = torch.zeros(2, dtype=torch.uint8, device=f"cuda:{index}")

    def register(self, address: int, nbytes: int, flags: int) -> None:
        """Raises PinError, and leaves no error behind."""
        with self._torch.cuda.device(self._index):
            code = int(self._cudart.cudaHostRegister(address, nbytes, flags))
        if code != 0:
            self._forget_error()
            reason = self._torch.cuda.CudaError(code)
            raise PinError(f"cannot register {nbytes} bytes of host memory with the driver: {reason}")

    def unregister(self, address: int) -> None:
        """Fails on a broken device only, which the copies report; it may run in the middle of unwinding for that."""
        with contextlib.suppress(RuntimeError):
            with self._torch.cuda.device(self._index):
                code = int(self._cudart.cudaHostUnregister(address))
            if code != 0:
                self._forget_error()

    def _forget_error(self) -> None:
        """Clear this thread's last CUDA error, which the failed call left behind.

        cudart's calls return their error and keep it until cudaGetLastError is called, which torch's bindings do not
        offer. torch itself calls it after each copy within a device (`copy_device_to_device` in ATen's Copy.cu) and
        each kernel, and raises what an earlier call left as if it were the copy's own. So let it, here and now.
        """
        with contextlib.suppress(RuntimeError):
            self._two_bytes[:1].copy_(self._two_bytes[1:])


class RegisteredPinned:
    """An own anonymous mapping of whole pages, registered with the driver. Raises PinError."""

    how = "registered"

    def __init__(self, registrar: Registrar, nbytes: int) -> None:
        import torch

        try:
            mapping = mmap.mmap(-1, nbytes + -nbytes % PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # After a fork the first writer of a shared page gets a copy, and the device would still read the original.
            mapping.madvise(mmap.MADV_DONTFORK)
        except OSError as error:
            raise PinError(f"cannot map {nbytes} bytes of host memory: {error.strerror}") from error
        pages = torch.frombuffer(mapping, dtype=torch.uint8)
        pages[::PAGE_BYTES].zero_()  # registering is faster when the pages are there
        registrar.register(pages.data_ptr(), len(mapping), PORTABLE)
        self._unregister = weakref.finalize(self, registrar.unregister, pages.data_ptr())
        self.tensor: Bytes = pages[:nbytes]
        self.buffer = memoryview(mapping)[:nbytes]

    def close(self) -> None:
        self._unregister()
        self.tensor, self.buffer = None, memoryview(b"")


class TorchPinned:
    """torch's own pinned memory: it takes the next power of two, and stays in torch's cache when it is given back."""

    how = "torch"

    def __init__(self, nbytes: int) -> None:
        import torch

        try:
            self.tensor: Bytes = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise PinError(f"cannot pin {nbytes} bytes of host memory: {first_line(error)}") from error
        if self.tensor.data_ptr() % PAGE_BYTES:
            raise PinError(f"torch's pinned memory does not begin on a page: {self.tensor.data_ptr():#x}")
        self.buffer = memoryview(self.tensor.numpy())

    def close(self) -> None:
        self.tensor, self.buffer = None, memoryview(b"")


class RegisteredRange:
    """Read-only memory that somebody else mapped, registered with the driver. Raises PinError."""

    def __init__(self, registrar: Registrar, address: int, nbytes: int) -> None:
        import torch

        registrar.register(address, nbytes, READ_ONLY)
        self._unregister = weakref.finalize(self, registrar.unregister, address)
        # torch warns of read-only buffers; nothing writes to this one, though ctypes would let it.
        self.tensor: Bytes = torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)

    def close(self) -> None:
        self._unregister()
        self.tensor = None
