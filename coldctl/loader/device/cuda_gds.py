"""GPUDirect Storage by torch.cuda.gds: the disk writes straight into device memory, or this refuses and says why.

cuFile, the library below, replaces what it cannot do by reads into host memory and copies from there, and says nothing:
its compatibility mode. That is forbidden here, twice: by looking for a driver that can do better, and by the variable
that cuFile knows for it.

torch holds the GIL while cuFile reads (its GdsFile.cpp binds the call as it is). So nothing is lost by one read at a
time, which needs one piece of scratch memory, and a large read is left to cuFile to split over its own threads.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coldctl.errors import EnvironmentLacksError, UnreadableError, from_os_error
from coldctl.loader.device.cuda_errors import first_line
from coldctl.loader.device.protocol import Bytes, Device
from coldctl.units import MIB

SCRATCH_BYTES = 64 * MIB
"""What one call of cuFile reads at most: four times what it asks of the driver at once (max_direct_io_size_kb)."""

_NVIDIA_FS = Path("/proc/driver/nvidia-fs/stats")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"

_COMPATIBILITY = "CUFILE_ALLOW_COMPAT_MODE"
_HINT = (
    "set up GPUDirect Storage (gdscheck -p of the CUDA toolkit says what it lacks; PCI P2PDMA also needs "
    "CUFILE_USE_PCIP2PDMA=true), or use mode ring or direct"
)


def open_gds(device: Device) -> CudaGds:
    """Raises EnvironmentLacksError that names what is missing: a driver, or cuFile in torch.

    Sets CUFILE_ALLOW_COMPAT_MODE=false for this process: cuFile reads it once, when it is first used. cuFile logs what
    it lacks to cufile.log in the working directory, or where CUFILE_LOGFILE_PATH says.
    """
    if not _NVIDIA_FS.exists() and not any(map(_has_peer_memory, _PCI_DEVICES.glob("*"))):
        raise EnvironmentLacksError(
            f"no GPUDirect Storage: the module nvidia-fs is not loaded (no {_NVIDIA_FS}), and no NVIDIA device offers "
            "its memory to others (PCI P2PDMA), so cuFile would copy through host memory",
            hint=_HINT,
        )
    os.environ[_COMPATIBILITY] = "false"
    return CudaGds(device)


def _has_peer_memory(pci_device: Path) -> bool:
    """Whether it is an NVIDIA device whose driver gave its memory to the kernel's peer-to-peer pool, as static BAR1
    does. (Some drivers make an empty pool.)"""
    try:
        is_nvidia = (pci_device / "vendor").read_text().strip() == _NVIDIA
        return is_nvidia and int((pci_device / "p2pmem" / "size").read_text()) > 0
    except (OSError, ValueError):
        return False


class CudaGds:
    """Raises EnvironmentLacksError when torch has no cuFile, or cuFile no driver.

    It reads into memory of its own, which is registered with cuFile, and copies from there: registering each target
    would take longer. That memory goes with this.
    """

    def __init__(self, device: Device) -> None:
        from torch.cuda import gds

        self._device = device
        self._scratch = device.allocate(SCRATCH_BYTES)
        start_bytes = self._scratch.storage_offset()
        self._storage: Any = self._scratch.untyped_storage()[start_bytes : start_bytes + SCRATCH_BYTES]
        self._one_at_a_time = threading.Lock()
        try:
            gds.gds_register_buffer(self._storage)
        except RuntimeError as error:
            raise EnvironmentLacksError(f"no GPUDirect Storage: {first_line(error)}", hint=_HINT) from error
        weakref.finalize(self, gds.gds_deregister_buffer, self._storage)

    def open(self, path: str) -> CudaGdsFile:
        return CudaGdsFile(self, path)

    def read(self, file: Any, to: Bytes, offset_bytes: int) -> None:
        """Raises torch's RuntimeError. `to` is no longer than the scratch memory."""
        with self._one_at_a_time:
            file.load_storage(self._storage[: len(to)], offset_bytes)
            self._device.copy_plainly(to, self._scratch[: len(to)])


class CudaGdsFile:
    def __init__(self, gds: CudaGds, path: str) -> None:
        from torch.cuda.gds import GdsFile

        self._gds = gds
        self._path = path
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))  # GdsFile fails in its __del__ when its own open fails
            self._file: Any = GdsFile(path, os.O_RDONLY)
        except OSError as error:
            raise from_os_error(error, "open past the page cache", path) from error
        except RuntimeError as error:
            raise EnvironmentLacksError(
                f"cuFile refuses {path}: {first_line(error)}", hint="use mode ring or direct", file=path
            ) from error

    def read(self, to: Bytes, offset_bytes: int) -> None:
        for start_bytes in range(0, len(to), SCRATCH_BYTES):
            piece, at_bytes = to[start_bytes : start_bytes + SCRATCH_BYTES], offset_bytes + start_bytes
            try:
                self._gds.read(self._file, piece, at_bytes)
            except RuntimeError as error:
                message = f"cannot read {self._path} at byte {at_bytes}: {first_line(error)}"
                raise UnreadableError(message, file=self._path, offset_bytes=at_bytes) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None  # torch deregisters and closes it now
