"""One GPU as NVIDIA's driver library sees it: libnvidia-ml.so.1, called through ctypes.

NVML and not nvidia-smi, because nvidia-smi is a front of it whose output is "not guaranteed to be backwards compatible"
(its manual page), whose `--query-gpu` has no PCIe throughput, and whose start takes a second of its own. Both come with
the driver: where one is missing, so is the other. Structures and units are those of NVIDIA's NVML API reference.

Nothing here makes a CUDA context. But an open device keeps the driver awake: without persistence mode a CUDA context is
then made faster than by the first process on an idle machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coldctl.errors import EnvironmentLacksError

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_SENT, _RECEIVED = 0, 1
_TEXT_BYTES = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest that it wants."""
_HINT = (
    "the driver's libraries and devices have to be in the container too (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t. The first version counts the driver's own reserve as used, hundreds of MiB; this one does not,
    and agrees with nvidia-smi (Cldfire/nvml-wrapper, issue 57)."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilisation(ctypes.Structure):
    """nvmlUtilization_t, in per cent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlDevice:
    """What the driver measures on one device. Every answer is None where it has none: on MIG instances all but memory,
    in virtual machines with vGPU the PCIe throughput, where device and host share their memory the used bytes."""

    def __init__(self, nvml: Any, handle: ctypes.c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    def name(self) -> str | None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return _decoded(text) if self._told("nvmlDeviceGetName", text, _TEXT_BYTES) else None

    def driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return _decoded(text) if self._called("nvmlSystemGetDriverVersion", text, _TEXT_BYTES) else None

    def cuda_version(self) -> str | None:
        """The newest CUDA that the driver runs, which may be newer than torch's: 13000 means 13.0."""
        number = ctypes.c_int()
        told = self._called("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}" if told else None

    def pcie_generation(self) -> int | None:
        """That of the link now: an idle one may have slowed down."""
        return self._number("nvmlDeviceGetCurrPcieLinkGeneration")

    def pcie_width(self) -> int | None:
        """Lanes of the link now."""
        return self._number("nvmlDeviceGetCurrPcieLinkWidth")

    def total_bytes(self) -> int | None:
        memory = self._memory()
        return memory.total if memory else None

    def used_bytes(self) -> int | None:
        """Of the whole device, by all processes."""
        memory = self._memory()
        return memory.used if memory else None

    def _memory(self) -> _Memory | None:
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        return memory if self._told("nvmlDeviceGetMemoryInfo_v2", ctypes.byref(memory)) else None

    def utilisation_shares(self) -> tuple[float | None, float | None]:
        """The shares of the driver's last window (a sixth of a second to a second) in which a kernel ran, and in which
        device memory was read or written."""
        shares = _Utilisation()
        if not self._told("nvmlDeviceGetUtilizationRates", ctypes.byref(shares)):
            return None, None
        return shares.gpu / 100, shares.memory / 100

    def pcie_received_bytes_per_second(self) -> float | None:
        """Host to device, headers of the bus included, over 20 ms, which this takes."""
        return self._pcie_bytes_per_second(_RECEIVED)

    def pcie_sent_bytes_per_second(self) -> float | None:
        """Device to host, likewise."""
        return self._pcie_bytes_per_second(_SENT)

    def _pcie_bytes_per_second(self, direction: int) -> float | None:
        """NVML answers in "KB/s" and does not say of how many bytes. Here of 1000: at most 2.4 % too little."""
        kilobytes = ctypes.c_uint()
        told = self._told("nvmlDeviceGetPcieThroughput", direction, ctypes.byref(kilobytes))
        return kilobytes.value * 1e3 if told else None

    def power_watts(self) -> float | None:
        """Of the whole board; since Ampere the average of the last second."""
        milliwatts = ctypes.c_uint()
        return milliwatts.value / 1e3 if self._told("nvmlDeviceGetPowerUsage", ctypes.byref(milliwatts)) else None

    def _number(self, function: str) -> int | None:
        number = ctypes.c_uint()
        return number.value if self._told(function, ctypes.byref(number)) else None

    def _told(self, function: str, *arguments: Any) -> bool:
        return self._called(function, self._handle, *arguments)

    def _called(self, function: str, *arguments: Any) -> bool:
        call = getattr(self._nvml, function, None)  # older drivers lack some
        return call is not None and call(*arguments) == _SUCCESS


@contextmanager
def opened(uuid: str) -> Iterator[NvmlDevice]:
    """The device whose UUID is `uuid`, with or without the prefix `GPU-` or `MIG-`, while the block runs.

    By UUID, since NVML counts devices in the bus's order, and CUDA in an order of its own, less those that
    CUDA_VISIBLE_DEVICES hides. Raises EnvironmentLacksError that says what is missing.
    """
    nvml = load_nvml()
    if (result := nvml.nvmlInit_v2()) != _SUCCESS:
        raise EnvironmentLacksError(f"NVIDIA's driver does not answer: {_reason(nvml, result)}", hint=_HINT)
    try:
        yield NvmlDevice(nvml, _handle(nvml, uuid))
    finally:
        nvml.nvmlShutdown()


def _decoded(text: ctypes.Array[ctypes.c_char]) -> str:
    return text.value.decode(errors="replace")


def load_nvml() -> Any:
    """The library, loaded."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise EnvironmentLacksError(f"NVIDIA's {_LIBRARY} cannot be loaded: {error}", hint=_HINT) from error


def _handle(nvml: Any, uuid: str) -> ctypes.c_void_p:
    """torch tells UUIDs without the prefix that NVML wants."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    handle = ctypes.c_void_p()
    for prefix in ("GPU-", "MIG-"):
        if nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{bare}".encode(), ctypes.byref(handle)) == _SUCCESS:
            return handle
    raise EnvironmentLacksError(f"NVML finds no device with the UUID {uuid}", hint=_HINT)


def _reason(nvml: Any, result: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    return bytes(nvml.nvmlErrorString(result)).decode(errors="replace")
