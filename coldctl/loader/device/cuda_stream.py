"""Copies to a CUDA device and the events between them, by torch.cuda.Stream and torch.cuda.Event."""

from __future__ import annotations

from typing import Any

from coldctl.loader.device.cuda_errors import translated
from coldctl.loader.device.protocol import Bytes


class CudaEvent:
    """A mark in a stream that carries a time. It was recorded before anybody holds it."""

    def __init__(self, stream: Any) -> None:
        import torch

        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def done(self) -> bool:
        """Raises DeviceError for an error of any work before the mark, and ever after once the device has failed."""
        with translated("copy to the device"):
            return bool(self.event.query())

    def seconds_since(self, base: Any) -> float:
        """CUDA counts in steps of about half a microsecond (cudaEventElapsedTime, in milliseconds)."""
        with translated("time copies to the device"):
            return float(base.event.elapsed_time(self.event)) / 1000


class CudaStream:
    """One of torch's streams for the device; they wait for nothing that the default stream does."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._stream = torch.cuda.Stream(device)

    def copy(self, to: Bytes, source: Bytes) -> None:
        """Only pinned or registered memory is copied in the background: from other memory the call itself copies."""
        with translated("copy to the device"), self._torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
            # `to` belongs to the stream it was allocated on. Freed while the copy is under way, as on an error, its
            # memory would go to that stream's next tensor at once; recorded, it goes to nobody before the copy is over.
            to.record_stream(self._stream)

    def record(self) -> CudaEvent:
        with translated("mark a copy to the device"):
            return CudaEvent(self._stream)

    def wait(self, event: Any) -> None:
        with translated("order copies to the device"):
            self._stream.wait_event(event.event)
