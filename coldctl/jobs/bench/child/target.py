"""Where a load goes, host memory or a GPU: what has to be made ready before it, and when all of it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from coldctl.errors import DeviceError
from coldctl.jobs.bench.child.clock import Clock
from coldctl.jobs.bench.child.content import Tensor, content_sum
from coldctl.jobs.bench.child.device_memory import limit_memory, measured
from coldctl.jobs.bench.task import Outcome
from coldctl.loader.device.cuda import open_cuda

Tensors = Mapping[str, Tensor]


class Target(Protocol):
    """`device` is its name, a GPU's with its number."""

    device: str

    def arrive(self, tensors: Tensors, clock: Clock) -> None:
        """Returns when every byte of what a loader returned is there."""

    def described(self, outcome: Outcome, tensors: Tensors) -> Outcome:
        """`outcome` with the sum of `tensors`, and what is known of the memory that they are in. Nobody clocks it."""


def open_target(device: str, memory_fraction: float | None, clock: Clock) -> Target:
    """The target called `device`, ready for a load that begins now.

    Raises EnvironmentLacksError, UsageError and DeviceError as `open_cuda` does for a GPU that cannot be had.
    """
    return Host() if device == "cpu" else Gpu(device, memory_fraction, clock)


class Host:
    """All is there when it was touched: a mapping loads nothing before that."""

    device = "cpu"

    def arrive(self, tensors: Tensors, clock: Clock) -> None:
        with clock.timed("touch"):
            self._sum = content_sum(tensors)

    def described(self, outcome: Outcome, tensors: Tensors) -> Outcome:  # noqa: ARG002
        return replace(outcome, content_sum=_written(self._sum))


class Gpu:
    """All is there when the device has done what it was asked for."""

    def __init__(self, device: str, memory_fraction: float | None, clock: Clock) -> None:
        with clock.timed("cuda_context"):
            self.device = open_cuda(device).name
            _use(self.device)
        if memory_fraction is not None:
            limit_memory(self.device, memory_fraction)
        self._memory = measured(self.device)

    def arrive(self, tensors: Tensors, clock: Clock) -> None:  # noqa: ARG002
        _synchronise(self.device)

    def described(self, outcome: Outcome, tensors: Tensors) -> Outcome:
        memory = self._memory()  # before the sum, which takes some
        _refuse_strays(tensors)
        return replace(outcome, device_memory=memory, content_sum=_written(content_sum(tensors)))


def _use(device: str) -> None:
    """Make its context, and it the current device: not every peer looks at the one that it is told."""
    import torch

    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)


def _synchronise(device: str) -> None:
    import torch

    torch.cuda.synchronize(device)


def _refuse_strays(tensors: Tensors) -> None:
    """Raise DeviceError for tensors that a loader left in host memory: their time is none of a load to a device."""
    strays = sum(tensor.device.type != "cuda" for tensor in tensors.values())
    if strays:
        raise DeviceError(f"{strays} of {len(tensors)} tensors were brought to host memory, and not to the device")


def _written(total: int) -> str:
    return f"{total:016x}"
