"""What a GPU is, by NVIDIA's driver: without a CUDA context, which would take a second and memory of the device."""

from __future__ import annotations

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.machine.nvml import NvmlDevice, opened
from coldctl.results.bench import DeviceFacts


def device_facts(uuid: str) -> DeviceFacts | None:
    """The GPU whose UUID is `uuid` (`device_samples.device_uuid`); None where the driver's library is missing or does
    not know it."""
    try:
        with opened(uuid) as device:
            return described(device)
    except EnvironmentLacksError:
        return None


def described(device: NvmlDevice) -> DeviceFacts:
    """An idle link may have slowed down: the PCIe generation is the link's own only right after it was used."""
    return DeviceFacts(
        name=device.name() or "GPU of unknown name",
        driver=device.driver_version(),
        cuda=device.cuda_version(),
        memory_bytes=device.total_bytes(),
        pcie_generation=device.pcie_generation(),
        pcie_width=device.pcie_width(),
    )
