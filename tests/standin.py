"""A device for tests: the protocol of coldctl.loader.device on torch's CPU tensors, really asynchronous, able to fail.

Each stream has a thread that copies what it was given later and in order, from whatever the source holds by then. An
event is done when the thread has passed it, and its time is the clock's. As on a Hopper GPU, copies of all streams take
turns. The device keeps account of memory, and `violations` lists what would have been undefined on a real one.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from coldctl.errors import DeviceError, EnvironmentLacksError, OutOfMemoryError, PinError, UnreadableError
from coldctl.errors import from_os_error as as_coldctl_error
from coldctl.loader.device.protocol import Bytes
from coldctl.loader.syscalls import mincore
from tests.account import Account

PAGE_BYTES = 4096
NOT_CLEARED = 0xA5
POISON = 0xDB

Span = tuple[int, int]
"""The first address of some memory, and the one after its last."""

Copy = Callable[[Bytes, Bytes], object]


def faithfully(to: Bytes, source: Bytes) -> None:
    to.copy_(source)


def dropped(to: Bytes, source: Bytes) -> None:
    """The target keeps what it had."""


def with_a_flipped_bit(to: Bytes, source: Bytes) -> None:
    to.copy_(source)
    to[len(to) // 2] ^= 1


def with_two_pages_swapped(to: Bytes, source: Bytes) -> None:
    to.copy_(source)
    to[:PAGE_BYTES], to[PAGE_BYTES : 2 * PAGE_BYTES] = source[PAGE_BYTES : 2 * PAGE_BYTES], source[:PAGE_BYTES]


class Locked(NamedTuple):
    begin: int
    end: int
    kind: str


class StandIn:
    """A Device. What goes wrong is told by its attributes, at any time:

    `copies` says how the copy with a number (from 0, in the order of submission) is done instead of `faithfully`;
    `copy_bytes_per_second` slows every copy; `pause` holds all that have not begun, until `let_go`.
    `poison` overwrites pinned memory with 0xDB once it was copied, so that a slot sent again unfilled shows.
    `watch` compares what a source holds when it is submitted and when it is copied.
    `allocations_left` allocations succeed, and none past `capacity_bytes`; `pin_limit_bytes` bounds one pinned piece
    (0: none), `pin_how` is what pinned memory says it is; `register_fails`; with a `failure` nothing is copied any more
    and every event and plain copy raises it. Plain copies have numbers like the others, and `pause` holds them too.
    `gds_lacks` is why there is no GPUDirect Storage, `gds_refuses` why it takes no file, and `gds_copy` its last step.
    `settled` counts how often somebody waited for what was computed.
    """

    def __init__(self, name: str = "stand-in:0") -> None:
        self.name = name
        self.lanes_help: bool | None = None
        self.copies: dict[int, Copy] = {}
        self.copy_bytes_per_second: float | None = None
        self.poison = False
        self.watch = False
        self.allocations_left: int | None = None
        self.capacity_bytes = 1 << 36
        self.pin_limit_bytes: int | None = None
        self.pin_how = "registered"
        self.register_fails = False
        self.failure: str | None = None
        self.gds_lacks: str | None = None
        self.gds_refuses: str | None = None
        self.gds_copy: Copy = faithfully
        self.settled = 0
        self.violations: list[str] = []
        self.copies_done = 0
        self.allocated, self.pinned, self.registered, self.mapped = Account(), Account(), Account(), Account()
        self._numbers, self._locks = itertools.count(), itertools.count()
        self._pending: dict[int, Span] = {}
        self._locked: dict[int, Locked] = {}
        self._one_at_a_time, self._touching = threading.Lock(), threading.Lock()
        self._going = threading.Event()
        self._going.set()

    def pause(self) -> None:
        self._going.clear()

    def let_go(self) -> None:
        self._going.set()

    def allocate(self, nbytes: int) -> Bytes:
        memory = self._empty(nbytes, PAGE_BYTES - 1)
        skip_bytes = -memory.data_ptr() % PAGE_BYTES
        return memory[skip_bytes : skip_bytes + nbytes]

    def allocate_plainly(self, nbytes: int) -> Bytes:
        return self._empty(nbytes, 0)

    def _empty(self, nbytes: int, slack_bytes: int) -> Bytes:
        if self.allocations_left == 0 or self.allocated.now_bytes + nbytes > self.capacity_bytes:
            raise OutOfMemoryError(f"cannot allocate {nbytes} bytes on {self.name}")
        if self.allocations_left:
            self.allocations_left -= 1
        with torch.inference_mode(False):
            memory = torch.full((nbytes + slack_bytes,), NOT_CLEARED, dtype=torch.uint8, device="cpu")
        self.allocated.take(nbytes)
        weakref.finalize(memory.untyped_storage(), self.allocated.give_back, nbytes)
        return memory

    def pin(self, nbytes: int) -> StandInPinned:
        if self.pin_limit_bytes is not None and nbytes > self.pin_limit_bytes:
            raise PinError(f"cannot pin {nbytes} bytes: {self.name} was told to refuse")
        return StandInPinned(self, nbytes)

    def register(self, address: int, nbytes: int) -> StandInRegistration:
        end = address + nbytes
        overlaps = any(address < other.end and other.begin < end for other in list(self._locked.values()))
        if self.register_fails or overlaps or not _is_mapped(address, nbytes):
            raise PinError(f"cannot register {nbytes} bytes at {address:#x}")
        return StandInRegistration(self, address, nbytes)

    def stream(self) -> StandInStream:
        return StandInStream(self)

    def copy_plainly(self, to: Bytes, source: Bytes) -> None:
        number = next(self._numbers)
        self._going.wait()
        self.raise_if_failed()
        self.copies.get(number, faithfully)(to, source)
        self.raise_if_failed()

    def settle(self) -> None:
        """torch computes on the CPU in the calling thread, so there is nothing to wait for."""
        self.settled += 1

    def gds(self) -> StandInGds:
        if self.gds_lacks is not None:
            raise EnvironmentLacksError(f"no GPUDirect Storage: {self.gds_lacks}")
        return StandInGds(self.gds_refuses, self.gds_copy)

    def lock(self, memory: Bytes, kind: str) -> int:
        """The number by which to unlock it. (Not its address: other memory may have that a moment later.)"""
        number = next(self._locks)
        self._locked[number] = Locked(*_span(memory), kind)
        return number

    def unlock(self, number: int) -> None:
        begin, end, kind = self._locked.pop(number)
        self.violations += [
            f"{kind} memory was given back before copy {copy} from it was over"
            for copy, source in list(self._pending.items())
            if self.failure is None and source[0] < end and begin < source[1]
        ]

    def unmapped(self, number: int, nbytes: int) -> None:
        self.mapped.give_back(nbytes)
        if number in self._locked:
            self.violations.append(f"{self._locked[number].kind} memory was unmapped before it was given back")

    def submit(self, to: Bytes, source: Bytes) -> Callable[[], None]:
        """What the stream's thread is to do for this copy."""
        if len(to) != len(source):
            raise ValueError(f"a copy of {len(source)} bytes to {len(to)}")
        number, span = next(self._numbers), _span(source)
        holders = (lock for lock, (begin, end, _) in list(self._locked.items()) if begin <= span[0] and span[1] <= end)
        lock = next(holders, None)
        if lock is None:
            self.violations.append(f"copy {number} comes from memory that is neither pinned nor registered")
        self._pending[number] = span
        seen = _checksum(source) if self.watch else None
        return partial(self._run, number, to, source, lock, seen)

    def _run(self, number: int, to: Bytes, source: Bytes, lock: int | None, seen: int | None) -> None:
        self._going.wait()
        with self._one_at_a_time:
            if self.copy_bytes_per_second:
                time.sleep(len(source) / self.copy_bytes_per_second)
            with self._touching:
                held = None if lock is None else self._locked.get(lock)
                given_back = lock is not None and held is None  # a violation already, and maybe unmapped by now
                if self.failure is None and not given_back:
                    self._copy(number, to, source, seen, self.poison and held is not None and held.kind == "pinned")
            del self._pending[number]
            self.copies_done += 1

    def _copy(self, number: int, to: Bytes, source: Bytes, seen: int | None, poison: bool) -> None:
        if seen is not None and _checksum(source) != seen:
            self.violations.append(f"the source of copy {number} changed before the copy was over")
        self.copies.get(number, faithfully)(to, source)
        if poison:
            source.fill_(POISON)

    def raise_if_failed(self) -> None:
        """Nothing is copied any more when this has raised."""
        if self.failure is not None:
            with self._touching:
                raise DeviceError(self.failure)


class StandInStream:
    def __init__(self, device: StandIn) -> None:
        self._device = device
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=f"stream of {device.name}", daemon=True).start()
        weakref.finalize(self, self._tasks.put, None)

    def copy(self, to: Bytes, source: Bytes) -> None:
        self._tasks.put(self._device.submit(to, source))

    def record(self) -> StandInEvent:
        event = StandInEvent(self._device)
        self._tasks.put(event.passed)
        return event

    def wait(self, event: Any) -> None:
        self._tasks.put(event.wait)


def _work(tasks: SimpleQueue[Callable[[], object] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds memory


class StandInEvent:
    def __init__(self, device: StandIn) -> None:
        self._device = device
        self._over = threading.Event()
        self.seconds = math.nan
        self.wait = self._over.wait

    def passed(self) -> None:
        self.seconds = time.perf_counter()
        self._over.set()

    def done(self) -> bool:
        self._device.raise_if_failed()
        return self._over.is_set()

    def seconds_since(self, base: Any) -> float:
        return float(self.seconds - base.seconds)


class StandInPinned:
    def __init__(self, device: StandIn, nbytes: int) -> None:
        mapping = mmap.mmap(-1, max(nbytes, 1))
        self.how = device.pin_how
        with torch.inference_mode(False):
            self.tensor: Bytes = torch.frombuffer(mapping, dtype=torch.uint8)[:nbytes]
        self.buffer = memoryview(mapping)[:nbytes]
        self._device, self._number = device, device.lock(self.tensor, "pinned")
        device.pinned.take(nbytes)
        device.mapped.take(nbytes)
        weakref.finalize(mapping, device.unmapped, self._number, nbytes)

    def close(self) -> None:
        self._device.unlock(self._number)
        self._device.pinned.give_back(len(self.buffer))
        self.tensor, self.buffer = None, memoryview(b"")


class StandInRegistration:
    def __init__(self, device: StandIn, address: int, nbytes: int) -> None:
        self.tensor: Bytes = torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)
        self._device, self._number = device, device.lock(self.tensor, "registered")
        device.registered.take(nbytes)

    def close(self) -> None:
        if not _is_mapped(self.tensor.data_ptr(), len(self.tensor)):
            self._device.violations.append("registered memory was unmapped before it was given back")
        self._device.unlock(self._number)
        self._device.registered.give_back(len(self.tensor))
        self.tensor = None


class StandInGds:
    """Reads past the page cache, as the real one does; the last step to the target is a copy."""

    def __init__(self, refuses: str | None, copy: Copy) -> None:
        self._refuses = refuses
        self._copy = copy

    def open(self, path: str) -> StandInGdsFile:
        if self._refuses is not None:
            raise EnvironmentLacksError(f"cuFile refuses {path}: {self._refuses}", file=path)
        return StandInGdsFile(path, self._copy)


class StandInGdsFile:
    def __init__(self, path: str, copy: Copy) -> None:
        self._path = path
        self._copy = copy
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            raise as_coldctl_error(error, "open past the page cache", path) from error

    def read(self, to: Bytes, offset_bytes: int) -> None:
        if offset_bytes % PAGE_BYTES or len(to) % PAGE_BYTES:
            raise ValueError(f"a read of {len(to)} bytes at {offset_bytes} is not one of whole pages")
        with mmap.mmap(-1, len(to)) as mapping, memoryview(mapping) as aligned:
            try:
                got_bytes = os.preadv(self._fd, [aligned], offset_bytes)
            except OSError as error:
                raise self._unreadable(offset_bytes, str(error.strerror)) from error
            if got_bytes != len(to):
                raise self._unreadable(offset_bytes, f"{got_bytes} bytes, expected {len(to)}")
            self._copy(to, torch.frombuffer(bytearray(aligned), dtype=torch.uint8))

    def _unreadable(self, offset_bytes: int, why: str) -> UnreadableError:
        message = f"cannot read {self._path} at byte {offset_bytes}: {why}"
        return UnreadableError(message, file=self._path, offset_bytes=offset_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


def _span(memory: Bytes) -> Span:
    return memory.data_ptr(), memory.data_ptr() + len(memory)


def _checksum(memory: Bytes) -> int:
    return zlib.crc32(memory.numpy())


def _is_mapped(address: int, nbytes: int) -> bool:
    try:
        mincore(address, nbytes, ctypes.create_string_buffer(-(-nbytes // mmap.PAGESIZE)))
    except OSError:
        return False
    return True
