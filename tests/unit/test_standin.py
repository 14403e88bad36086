"""tests.standin: it is asynchronous, it keeps true accounts, and it misbehaves exactly as it is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from coldctl.errors import DeviceError, EnvironmentLacksError, OutOfMemoryError, PinError, UnreadableError
from coldctl.loader.device.protocol import Bytes
from tests.gpu.device_contract import filled, mapped, some_bytes, waited_for, write
from tests.standin import (
    NOT_CLEARED,
    POISON,
    Copy,
    StandIn,
    dropped,
    with_a_flipped_bit,
    with_two_pages_swapped,
)

NBYTES = 1 << 16


@pytest.fixture
def device() -> StandIn:
    return StandIn()


def sent(device: StandIn, content: Bytes) -> Bytes:
    """What arrives of `content`."""
    pinned, to, stream = device.pin(len(content)), device.allocate(len(content)), device.stream()
    filled(pinned.buffer, content)
    stream.copy(to, pinned.tensor)
    waited_for(stream.record())
    pinned.close()
    return to


def test_a_held_copy_happens_later_from_what_its_source_then_holds(device: StandIn) -> None:
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    device.pause()
    stream.copy(to, pinned.tensor)
    over = stream.record()
    filled(pinned.buffer, some_bytes(NBYTES, seed=1))
    time.sleep(0.05)
    assert not over.done()
    assert to.unique().tolist() == [NOT_CLEARED]
    device.let_go()
    waited_for(over)
    assert torch.equal(to, some_bytes(NBYTES, seed=1))


def test_a_source_that_changes_before_its_copy_is_noticed(device: StandIn) -> None:
    device.watch = True
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    device.pause()
    stream.copy(to, pinned.tensor)
    pinned.buffer[5] ^= 1
    device.let_go()
    waited_for(stream.record())
    assert device.violations == ["the source of copy 0 changed before the copy was over"]


def test_a_stream_that_waits_for_a_held_one_is_held_too(device: StandIn) -> None:
    pinned, to = device.pin(NBYTES), device.allocate(NBYTES)
    first, second, free = device.stream(), device.stream(), device.stream()
    device.pause()
    first.copy(to, pinned.tensor)
    second.wait(first.record())
    after = second.record()
    waited_for(free.record())
    assert not after.done()
    device.let_go()
    waited_for(after)


def test_copies_can_be_slowed(device: StandIn) -> None:
    device.copy_bytes_per_second = NBYTES / 0.05
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    begin = stream.record()
    stream.copy(to, pinned.tensor)
    stream.copy(to, pinned.tensor)
    assert waited_for(stream.record()).seconds_since(begin) >= 0.1


@pytest.mark.parametrize(
    ("copy", "differing"),
    [(dropped, "all"), (with_a_flipped_bit, [NBYTES // 2]), (with_two_pages_swapped, "first two pages")],
)
def test_the_copy_that_was_named_goes_wrong_and_no_other(
    device: StandIn, copy: Copy, differing: str | list[int]
) -> None:
    content = torch.arange(NBYTES // 256, dtype=torch.uint8).repeat_interleave(256)
    device.copies[1] = copy
    right, wrong = sent(device, content), sent(device, content)
    assert torch.equal(right, content)
    differs = (wrong != content).nonzero().flatten().tolist()
    if copy is dropped:
        assert wrong.unique().tolist() == [NOT_CLEARED]
    elif copy is with_two_pages_swapped:
        assert torch.equal(wrong[:8192], torch.cat([content[4096:8192], content[:4096]]))
        assert max(differs) == 8191
    else:
        assert differs == differing


def test_a_slot_is_poisoned_once_it_was_copied(device: StandIn) -> None:
    device.poison = True
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    filled(pinned.buffer, some_bytes(NBYTES))
    stream.copy(to, pinned.tensor)
    waited_for(stream.record())
    assert torch.equal(to, some_bytes(NBYTES))
    assert set(pinned.buffer) == {POISON}


def test_allocations_run_out_when_told(device: StandIn) -> None:
    device.allocations_left = 2
    kept = [device.allocate(10), device.allocate_plainly(8)]
    with pytest.raises(OutOfMemoryError):
        device.allocate(1)
    device.allocations_left, device.capacity_bytes = None, 20
    device.allocate(2)
    with pytest.raises(OutOfMemoryError):
        device.allocate(3)
    assert sum(map(len, kept)) == 18


def test_pinning_fails_above_a_size_and_can_be_the_fallback(device: StandIn) -> None:
    device.pin_limit_bytes = NBYTES
    with pytest.raises(PinError):
        device.pin(NBYTES + 1)
    device.pin_how = "torch"
    assert device.pin(NBYTES).how == "torch"


def test_registering_fails_when_told(device: StandIn, tmp_path: Path) -> None:
    address, close = mapped(write(tmp_path / "file", some_bytes(NBYTES)))
    device.register_fails = True
    with pytest.raises(PinError):
        device.register(address, NBYTES)
    close()


def test_a_device_that_failed_says_so_at_every_event_and_copies_nothing_any_more(device: StandIn) -> None:
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    device.pause()
    stream.copy(to, pinned.tensor)
    over = stream.record()
    device.failure = "it fell off the bus"
    for _ in range(2):
        with pytest.raises(DeviceError, match="fell off the bus"):
            over.done()
    pinned.close()
    device.let_go()
    over.wait()
    assert to.unique().tolist() == [NOT_CLEARED]
    assert device.violations == []


def test_the_accounts_follow_memory_to_its_end(device: StandIn) -> None:
    first, view = device.allocate(1000), device.allocate(500)[100:200]
    assert (device.allocated.now_bytes, device.allocated.peak_bytes) == (1500, 1500)
    del first
    assert device.allocated.now_bytes == 500
    del view
    assert (device.allocated.now_bytes, device.allocated.peak_bytes) == (0, 1500)

    pinned = device.pin(NBYTES)
    slot = pinned.tensor[:10]
    pinned.close()
    assert (device.pinned.now_bytes, device.mapped.now_bytes) == (0, NBYTES)
    del slot
    assert (device.mapped.now_bytes, device.mapped.peak_bytes) == (0, NBYTES)
    assert device.violations == []


def test_memory_is_back_once_its_copy_was_the_last_to_hold_it(device: StandIn) -> None:
    pinned, stream = device.pin(NBYTES), device.stream()
    stream.copy(device.allocate(NBYTES), pinned.tensor)
    waited_for(stream.record())
    assert device.allocated.now_bytes == 0


def test_memory_given_back_under_a_copy_is_a_violation(device: StandIn) -> None:
    pinned, to, stream = device.pin(NBYTES), device.allocate(NBYTES), device.stream()
    device.pause()
    stream.copy(to, pinned.tensor)
    pinned.close()
    assert device.violations == ["pinned memory was given back before copy 0 from it was over"]
    device.let_go()
    waited_for(stream.record())
    assert to.unique().tolist() == [NOT_CLEARED], "memory that may be unmapped is not touched"


def test_pinned_memory_that_is_dropped_and_never_closed_is_a_violation(device: StandIn) -> None:
    device.pin(NBYTES)
    assert device.violations == ["pinned memory was unmapped before it was given back"]


def test_a_mapping_removed_before_its_registration_is_a_violation(device: StandIn, tmp_path: Path) -> None:
    address, close = mapped(write(tmp_path / "file", some_bytes(NBYTES)))
    registration = device.register(address, NBYTES)
    close()
    registration.close()
    assert device.violations == ["registered memory was unmapped before it was given back"]


def test_a_copy_from_plain_memory_is_a_violation(device: StandIn) -> None:
    stream = device.stream()
    stream.copy(device.allocate(NBYTES), some_bytes(NBYTES))
    waited_for(stream.record())
    assert device.violations == ["copy 0 comes from memory that is neither pinned nor registered"]


def test_gds_is_refused_with_the_reason_it_was_given(device: StandIn) -> None:
    device.gds_lacks = "nvidia-fs is not loaded"
    with pytest.raises(EnvironmentLacksError, match="nvidia-fs is not loaded"):
        device.gds()


def test_gds_reads_whole_pages_only_and_none_past_the_end(device: StandIn, tmp_path: Path) -> None:
    path = write(tmp_path / "file", some_bytes(6000))
    try:
        opened = device.gds().open(os.fspath(path))
    except EnvironmentLacksError as error:
        pytest.skip(f"no GDS: {error.message}")
    with opened as file:
        with pytest.raises(ValueError, match="whole pages"):
            file.read(device.allocate(4096), 100)
        with pytest.raises(UnreadableError, match="at byte 4096: 1904 bytes, expected 4096"):
            file.read(device.allocate(4096), 4096)
