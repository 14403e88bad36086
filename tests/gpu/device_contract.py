"""What every device must do, whichever it is: a class of tests for test modules that have a fixture `device`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from coldctl.errors import EnvironmentLacksError, OutOfMemoryError, PinError
from coldctl.loader.device.protocol import Bytes, Device, Event, Stream
from coldctl.loader.syscalls import map_read_only, unmap

PAGE_BYTES = 4096
MIB = 1 << 20


def some_bytes(nbytes: int, seed: int = 0) -> Bytes:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def waited_for(event: Event) -> Event:
    until_seconds = time.monotonic() + 60
    while not event.done():
        assert time.monotonic() < until_seconds, "the event was not done within a minute"
        time.sleep(0.001)
    return event


def filled(buffer: memoryview, content: Bytes) -> None:
    buffer[:] = content.numpy().data


def write(path: Path, content: Bytes) -> Path:
    path.write_bytes(content.numpy().tobytes())
    return path


def works(device: Device, stream: Stream) -> None:
    """A copy in the background and a computation give what they should."""
    content = some_bytes(MIB, seed=9)
    pinned, to = device.pin(MIB), device.allocate(MIB)
    filled(pinned.buffer, content)
    stream.copy(to, pinned.tensor)
    waited_for(stream.record())
    pinned.close()
    assert int(to.to(torch.int64).sum()) == int(content.to(torch.int64).sum())


class DeviceContract:
    @pytest.mark.parametrize("nbytes", [1, 511, PAGE_BYTES, 3 * MIB + 5])
    def test_memory_is_flat_bytes_that_begin_on_a_page(self, device: Device, nbytes: int) -> None:
        several = [device.allocate(nbytes) for _ in range(3)]
        assert [(each.dtype, each.shape) for each in several] == [(torch.uint8, (nbytes,))] * 3
        assert [each.data_ptr() % PAGE_BYTES for each in several] == [0, 0, 0]

    @pytest.mark.parametrize("nbytes", [0, 1, 30, MIB])
    def test_a_tensor_of_its_own_takes_its_bytes(self, device: Device, nbytes: int) -> None:
        alone = device.allocate_plainly(nbytes)
        assert (alone.dtype, alone.shape) == (torch.uint8, (nbytes,))

    def test_more_than_there_is_is_refused_and_the_rest_still_works(self, device: Device) -> None:
        with pytest.raises(OutOfMemoryError, match=str(1 << 50)):
            device.allocate(1 << 50)
        works(device, device.stream())

    @pytest.mark.parametrize("nbytes", [5000, MIB])
    def test_pinned_memory_is_one_piece_for_readers_and_for_copies(self, device: Device, nbytes: int) -> None:
        pinned = device.pin(nbytes)
        assert (len(pinned.buffer), pinned.tensor.shape, pinned.buffer.readonly) == (nbytes, (nbytes,), False)
        assert pinned.tensor.data_ptr() % PAGE_BYTES == 0
        assert pinned.how in {"registered", "torch"}
        content = some_bytes(nbytes)
        filled(pinned.buffer, content)
        assert torch.equal(pinned.tensor, content)
        pinned.close()

    def test_a_reader_that_still_holds_pinned_memory_may_look_at_it(self, device: Device) -> None:
        pinned = device.pin(PAGE_BYTES)
        pinned.buffer[:3] = b"abc"
        kept, kept_tensor = pinned.buffer[:3], pinned.tensor[:3]
        pinned.close()
        assert bytes(kept) == b"abc"
        assert kept_tensor.tolist() == list(b"abc")

    def test_bytes_arrive_as_they_were(self, device: Device) -> None:
        content = some_bytes(3 * MIB + 5)
        pinned, to, stream = device.pin(len(content)), device.allocate(len(content)), device.stream()
        filled(pinned.buffer, content)
        stream.copy(to[: 2 * MIB], pinned.tensor[: 2 * MIB])
        stream.copy(to[2 * MIB :], pinned.tensor[2 * MIB :])
        waited_for(stream.record())
        assert torch.equal(to.cpu(), content)
        pinned.close()

    def test_a_stream_works_in_the_order_it_was_given(self, device: Device) -> None:
        slots, to, stream = device.pin(8 * MIB), device.allocate(MIB), device.stream()
        filled(slots.buffer, some_bytes(8 * MIB))
        for index in range(8):
            stream.copy(to, slots.tensor[index * MIB : (index + 1) * MIB])
        waited_for(stream.record())
        assert torch.equal(to.cpu(), slots.tensor[7 * MIB :])
        slots.close()

    def test_events_come_one_after_the_other(self, device: Device) -> None:
        pinned, to, stream = device.pin(4 * MIB), device.allocate(4 * MIB), device.stream()
        first = stream.record()
        stream.copy(to, pinned.tensor)
        second = stream.record()
        waited_for(second)
        assert first.done()
        assert 0 < second.seconds_since(first) < 60
        assert second.seconds_since(second) == 0
        pinned.close()

    def test_a_stream_waits_for_an_event_of_another(self, device: Device) -> None:
        slots, to = device.pin(65 * MIB), device.allocate(64 * MIB)
        filled(slots.buffer, torch.arange(65, dtype=torch.uint8).repeat_interleave(MIB))
        early, late = device.stream(), device.stream()
        early.copy(to, slots.tensor[: 64 * MIB])
        late.wait(early.record())
        late.copy(to[63 * MIB :], slots.tensor[64 * MIB :])
        waited_for(late.record())
        assert to[::MIB].tolist() == [*range(63), 64]
        assert to[63 * MIB :].unique().tolist() == [64]
        slots.close()

    def test_a_mapped_file_is_copied_from_where_it_is(self, device: Device, tmp_path: Path) -> None:
        content = some_bytes(MIB)
        address, close = mapped(write(tmp_path / "file", content))
        try:
            registration = device.register(address, MIB)
        except PinError:  # a device may not offer it, and must then be as good as new
            works(device, device.stream())
        else:
            to, stream = device.allocate(MIB), device.stream()
            stream.copy(to, registration.tensor)
            waited_for(stream.record())
            registration.close()
            assert torch.equal(to.cpu(), content)
        close()

    def test_memory_that_is_not_mapped_is_refused_and_leaves_no_error_behind(
        self, device: Device, tmp_path: Path
    ) -> None:
        address, close = mapped(write(tmp_path / "file", some_bytes(MIB)))
        close()
        with pytest.raises(PinError):
            device.register(address, MIB)
        works(device, device.stream())

    def test_a_plain_copy_is_over_when_it_returns(self, device: Device) -> None:
        content = some_bytes(MIB)
        first, second = device.allocate(MIB), device.allocate(MIB)
        device.copy_plainly(first, content)
        device.copy_plainly(second, first)
        assert torch.equal(second.cpu(), content)

    def test_threads_share_a_device(self, device: Device) -> None:
        def round_trip(seed: int) -> bool:
            content = some_bytes(MIB, seed)
            pinned, to, stream = device.pin(MIB), device.allocate(MIB), device.stream()
            filled(pinned.buffer, content)
            stream.copy(to, pinned.tensor)
            waited_for(stream.record())
            pinned.close()
            return bool(torch.equal(to.cpu(), content))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(round_trip, range(8))) == [True] * 8

    def test_modes_of_the_calling_thread_do_not_reach_the_threads_that_copy(self, device: Device) -> None:
        content = some_bytes(MIB)
        with torch.inference_mode(), torch.device("meta"):
            pinned, to, stream = device.pin(MIB), device.allocate(MIB)[:], device.stream()
            alone = device.allocate_plainly(MIB)
        filled(pinned.buffer, content)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(stream.copy, to, pinned.tensor).result()
            pool.submit(stream.copy, alone, pinned.tensor).result()
        waited_for(stream.record())
        pinned.close()
        assert torch.equal(to.cpu(), content)
        assert torch.equal(alone.cpu(), content)

    def test_memory_freed_under_a_copy_goes_to_nobody_before_its_end(self, device: Device) -> None:
        pinned, stream = device.pin(64 * MIB), device.stream()
        filled(pinned.buffer, torch.full((64 * MIB,), 7, dtype=torch.uint8))
        stream.copy(device.allocate(64 * MIB), pinned.tensor)
        over = stream.record()
        other = device.allocate(64 * MIB).fill_(9)
        waited_for(over)
        assert other.unique().tolist() == [9]
        pinned.close()

    def test_gds_reads_the_file_or_says_what_is_missing(
        self, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)  # cuFile writes a log
        content = some_bytes(4 * PAGE_BYTES)
        path, to = write(tmp_path / "file", content), device.allocate(2 * PAGE_BYTES)
        try:
            opened = device.gds().open(os.fspath(path))
        except EnvironmentLacksError as error:
            pytest.skip(f"no GDS: {error.message}")
        with opened as file:
            file.read(to, PAGE_BYTES)
        assert torch.equal(to.cpu(), content[PAGE_BYTES : 3 * PAGE_BYTES])


def mapped(path: Path) -> tuple[int, Callable[[], None]]:
    """The address of a read-only mapping of the file, and how to remove it."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        address = map_read_only(file.fileno(), 0, nbytes)
    return address, lambda: unmap(address, nbytes)
