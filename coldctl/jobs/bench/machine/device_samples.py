"""What the driver says of a GPU once a second while another process loads to it."""

from __future__ import annotations

import time
from threading import Event, Thread
from types import TracebackType

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.machine.nvml import NvmlDevice, opened
from coldctl.results.bench import DeviceSample


def device_uuid(device: str) -> str:
    """The UUID of torch's device `cuda` or `cuda:N`, by which a DeviceSampler in another process finds the same one.

    Makes torch's CUDA state in this process: call it where that is wanted anyway. torch must be a CUDA build.
    """
    import torch

    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


class DeviceSampler:
    """Samples the device `uuid` every second, from the beginning of a `with` block to its end, on a thread of its own.

    Begin it right before the process that loads: the samples count their seconds from the block's beginning. It never
    raises and never holds the block up at its beginning; where the driver cannot be asked `samples` stays empty and
    `reason` says why. A load of two seconds has two or three samples: they show what happened, they measure nothing.
    """

    def __init__(self, uuid: str, *, every_seconds: float = 1.0) -> None:
        self.reason: str | None = None
        self._uuid = uuid
        self._every_seconds = every_seconds
        self._samples: list[DeviceSample] = []
        self._over = Event()
        self._thread = Thread(target=self._sample, name="device-sampler", daemon=True)

    @property
    def samples(self) -> tuple[DeviceSample, ...]:
        return tuple(self._samples)

    def __enter__(self) -> DeviceSampler:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        try:
            with opened(self._uuid) as device:
                self._sample_until_over(device)
        except EnvironmentLacksError as error:
            self.reason = error.message

    def _sample_until_over(self, device: NvmlDevice) -> None:
        while not self._over.is_set():
            self._samples.append(sample(device, time.monotonic() - self._began))
            self._over.wait(self._every_seconds)


def sample(device: NvmlDevice, seconds: float) -> DeviceSample:
    """All that the driver tells now, in about 40 ms (20 for each direction of the bus)."""
    utilisation_share, memory_utilisation_share = device.utilisation_shares()
    return DeviceSample(
        seconds=seconds,
        used_bytes=device.used_bytes(),
        utilisation_share=utilisation_share,
        memory_utilisation_share=memory_utilisation_share,
        pcie_received_bytes_per_second=device.pcie_received_bytes_per_second(),
        pcie_sent_bytes_per_second=device.pcie_sent_bytes_per_second(),
        power_watts=device.power_watts(),
    )
