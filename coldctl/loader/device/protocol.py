"""What the loader asks of a device: memory, streams, events, pinned host memory, and no more.

`coldctl.loader.device.cuda` answers with torch.cuda; the tests answer with a stand-in that keeps to the same protocol
and can be told to misbehave. Device memory is a one-dimensional torch tensor of uint8 on either, so torch is needed for
all of it, and typed as `Bytes` here, since torch is imported only where it is used.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

Bytes = Any
"""A one-dimensional torch.Tensor of uint8."""


class Event(Protocol):
    """A mark in a stream. Asking never blocks."""

    def done(self) -> bool:
        """Whether all that the stream was given before the mark is over.

        Raises DeviceError when the device failed: then nothing is copied any more, and memory may be given back.
        """

    def seconds_since(self, base: Event) -> float:
        """Device time from `base` to this event, in seconds. Both are done."""


class Stream(Protocol):
    """Work that the device does in the order in which it was given. Callers take turns: it has no lock of its own."""

    def copy(self, to: Bytes, source: Bytes) -> None:
        """Begin to copy `source` (pinned or registered host memory) into `to` (device memory) of the same length.

        Returns before the bytes have moved: `source` may not be written until an event recorded afterwards is done.
        `to` may be dropped at once: its memory goes to nobody else before the copy is over.
        """

    def record(self) -> Event:
        """A mark after all that the stream was given so far. It carries a time."""

    def wait(self, event: Event) -> None:
        """What the stream is given from now on begins after `event`."""


class Pinned(Protocol):
    """Page-locked host memory, 4096-aligned. Closed, which no copy may be under way for, it is unlocked, and then given
    back when the last view of it is gone.

    `buffer` is its bytes for readers, `tensor` the same bytes for Stream.copy. `how` is `registered` (an own mapping,
    registered with the driver) or `torch` (torch's pinned memory).
    """

    buffer: memoryview
    tensor: Bytes
    how: str

    def close(self) -> None: ...


class Registration(Protocol):
    """Memory of the caller's (a read-only mapping of a file) that the driver can copy from while this is open.

    `tensor` is its bytes for Stream.copy. Closed before the memory is unmapped, and after all copies from it.
    """

    tensor: Bytes

    def close(self) -> None: ...


class Gds(Protocol):
    """Reads from storage straight into device memory. Any thread may call `read`."""

    def open(self, path: str) -> GdsFile:
        """Raises EnvironmentLacksError when the filesystem or the driver refuses the file."""


class GdsFile(Protocol):
    def read(self, to: Bytes, offset_bytes: int) -> None:
        """Fill `to`, device memory, from `offset_bytes` of the file on; returns when the bytes are there.

        `offset_bytes` and the length are multiples of 4096. Raises UnreadableError when they cannot be read.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Device(Protocol):
    """One device. Every method may be called from any thread.

    `name` is as torch spells it (`cuda:0`); `lanes_help` says whether copies on several streams are known to run at the
    same time on it: on Hopper they do not (the driver gives one copy engine to each direction), and None is not known.
    """

    name: str
    lanes_help: bool | None

    def allocate(self, nbytes: int) -> Bytes:
        """Device memory, its first byte on a multiple of 4096, not cleared. Raises OutOfMemoryError.

        No earlier work uses it any more, so that any stream may write it at once.
        """

    def allocate_plainly(self, nbytes: int) -> Bytes:
        """Memory for one tensor, as plain loaders take it: where it begins is the device's choice."""

    def pin(self, nbytes: int) -> Pinned:
        """Raises PinError, and leaves no error behind that a later call would report."""

    def register(self, address: int, nbytes: int) -> Registration:
        """Register mapped, read-only memory at a page's address. Raises PinError as `pin` does."""

    def stream(self) -> Stream: ...

    def copy_plainly(self, to: Bytes, source: Bytes) -> None:
        """Copy host memory of any kind into `to` (or device memory to device memory), and wait for it."""

    def settle(self) -> None:
        """Wait for the work that the calling thread gave to its current stream, such as computing with tensors."""

    def gds(self) -> Gds:
        """Raises EnvironmentLacksError that says what of torch, the driver or its files is missing."""
