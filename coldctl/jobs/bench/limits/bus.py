"""The GPU that loads go to, and what its bus gives, found out by a process of its own.

So the job itself has no CUDA context, which would take memory and share the device with the loads.
`python -m coldctl.jobs.bench.limits.bus` reads a device's name as JSON from stdin, and writes an Answer to stdout.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from coldctl import errors
from coldctl.errors import ColdctlError, DeviceError, EnvironmentLacksError
from coldctl.events import Events
from coldctl.jobs.bench.machine.device_samples import device_uuid
from coldctl.jobs.bench.processes.process import Deadline, run_child
from coldctl.loader.device.protocol import Bytes, Device, Event, Stream
from coldctl.loader.device.ring import Ring, Slot
from coldctl.loader.load.choice import open_device
from coldctl.loader.load.clock import covered_seconds
from coldctl.loader.syscalls import end_with_parent
from coldctl.units import MIB

STREAMS = (1, 2, 4)
COMMAND = (sys.executable, "-m", "coldctl.jobs.bench.limits.bus")

_CHUNK_BYTES = 16 * MIB
_SLOTS = 16
_PASSES = 16
_LOOK_SECONDS = 1e-4
_DEADLINE = Deadline(120.0, "2 minutes")


@dataclass(frozen=True, slots=True)
class Bus:
    """`device` is as torch spells it, with its number, and `uuid` as the driver knows it. `bytes_per_second` of pinned
    copies on so many streams is empty where it could not be measured, for the `reason`."""

    device: str
    uuid: str | None
    bytes_per_second: dict[int, float]
    reason: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`error` is the class in `coldctl.errors` of a device that cannot be used, and null for one that can."""

    bus: Bus | None = None
    error: str | None = None
    message: str = ""
    hint: str | None = None


def measure_bus(device: str, events: Events, *, command: Sequence[str] = COMMAND) -> Bus:
    """Open `device`, a GPU as torch spells it, in a process of its own, and measure copies to it.

    Raises UsageError for no such name, EnvironmentLacksError that says what is missing, DeviceError for a device that
    does not work, StoppedError.
    """
    ended = run_child(command, msgspec.json.encode(device), _DEADLINE, events)
    if ended.died:
        raise DeviceError(f"{device} cannot be used: the process that tried it {ended.died}")
    answer = msgspec.json.decode(ended.document, type=Answer)
    if answer.error or answer.bus is None:
        raise _error_of(answer)
    return answer.bus


def _error_of(answer: Answer) -> ColdctlError:
    kind = getattr(errors, answer.error or "", EnvironmentLacksError)
    error: ColdctlError = kind(answer.message, hint=answer.hint)
    return error


def main() -> None:
    end_with_parent()
    name = msgspec.json.decode(sys.stdin.buffer.read(), type=str)
    sys.stdout.buffer.write(msgspec.json.encode(answer_for(name)))


def answer_for(name: str, open_named: Callable[[str], Device | None] = open_device) -> Answer:
    try:
        device = open_named(name)
    except ColdctlError as error:
        return Answer(error=type(error).__name__, message=error.message, hint=error.hint)
    assert device is not None, "the host has no bus"
    uuid = device_uuid(device.name) if device.name.startswith("cuda") else None
    try:
        return Answer(Bus(device.name, uuid, pinned_rates(device), None))
    except ColdctlError as error:
        return Answer(Bus(device.name, uuid, {}, error.message))


def pinned_rates(device: Device) -> dict[int, float]:
    """Bytes per second from pinned memory to `device`, by the number of streams that take turns.

    In device time, over the union of the copies' intervals: streams that only queue behind each other show no gain.
    Raises PinError, OutOfMemoryError, DeviceError.
    """
    ring = Ring(device, _CHUNK_BYTES, _SLOTS)
    target = device.allocate(ring.slot_bytes * ring.slots)
    rates = {streams: _copy_all(device, ring, target, streams) for streams in STREAMS}
    ring.close()
    return rates


def _copy_all(device: Device, ring: Ring, target: Bytes, streams: int) -> float:
    """The rate of copying all slots to `target`, several times, each to a place of its own."""
    lanes = [device.stream() for _ in range(streams)]
    pieces = list(zip(ring, target.split(ring.slot_bytes), strict=True))
    _await([_copy(lane, *pieces[0])[1] for lane in lanes])  # the first copy of a stream takes longer
    base = lanes[0].record()
    turns = zip(itertools.cycle(lanes), pieces * _PASSES)
    copies = [_copy(lane, slot, to) for lane, (slot, to) in turns]
    _await([end for _, end in copies])
    seconds = covered_seconds((begin.seconds_since(base), end.seconds_since(base)) for begin, end in copies)
    return _PASSES * len(pieces) * ring.slot_bytes / seconds


def _copy(lane: Stream, slot: Slot, to: Bytes) -> tuple[Event, Event]:
    begin = lane.record()
    lane.copy(to, slot.tensor)
    return begin, lane.record()


def _await(ends: Iterable[Event]) -> None:
    """However long it takes: the process that waits is killed at its deadline."""
    for end in ends:
        while not end.done():
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
