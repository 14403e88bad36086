"""Block sums of memory: on the host and by torch, against sums of plain Python integers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coldctl._native import kernels
from coldctl.errors import StoppedError
from coldctl.events import Events
from coldctl.loader.load.sums import WINDOW_BYTES, device_sums, host_sums
from coldctl.loader.sink import has_sums, sums_in

MIB = 1 << 20


class Block(NamedTuple):
    at_bytes: int
    nbytes: int


Sums = list[tuple[int, int]]
SumsOf = Callable[[bytearray, Sequence[Block]], Sums]


def array_of(blocks: Sequence[Block]) -> NDArray[np.int64]:
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)


def pairs(sums: NDArray[np.uint64]) -> Sums:
    return [(sum1, sum2) for sum1, sum2 in sums.tolist()]


def on_host(memory: bytearray, blocks: Sequence[Block]) -> Sums:
    return pairs(host_sums(memoryview(memory), array_of(blocks)))


def by_torch(memory: bytearray, blocks: Sequence[Block]) -> Sums:
    return pairs(device_sums(torch.frombuffer(memory, dtype=torch.uint8), array_of(blocks)))


both = pytest.mark.parametrize("sums_of", [on_host, by_torch])


def by_hand(data: bytes | bytearray) -> tuple[int, int]:
    """The sum of the words, and of the words times their place counted from 1, mod 2^64."""
    padded = data + bytes(-len(data) % 8)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    return sum(words) % 2**64, sum(place * word for place, word in enumerate(words, start=1)) % 2**64


def random_bytes(nbytes: int) -> bytearray:
    return bytearray(random.Random(nbytes).randbytes(nbytes))


@both
def test_sums_that_anyone_can_work_out(sums_of: SumsOf) -> None:
    memory = bytearray(struct.pack("<3Q", 7, 1, 2) + b"\x03" + b"\xff" * 7 + b"\xff" * 24)
    blocks = [Block(0, 24), Block(0, 25), Block(24, 1), Block(32, 24)]
    # 7 + 2*1 + 3*2 = 15, and 4*3 more for a fourth word of the one byte 3; then three words of -1.
    assert sums_of(memory, blocks) == [(10, 15), (13, 27), (3, 3), (2**64 - 3, 2**64 - 6)]


@both
@pytest.mark.parametrize("nbytes", [*range(1, 18), 4095, 4096, 4097, 4 * MIB - 9, 4 * MIB - 1, 4 * MIB])
def test_what_stands_around_a_block_does_not_count(sums_of: SumsOf, nbytes: int) -> None:
    data = random_bytes(nbytes)
    memory = bytearray(b"\xff" * 16) + data + bytearray(b"\xff" * 16)
    assert sums_of(memory, [Block(16, nbytes)]) == [by_hand(data)]


@both
@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 4 * MIB - 1])
def test_a_block_may_end_where_the_memory_ends(sums_of: SumsOf, nbytes: int) -> None:
    data = random_bytes(nbytes)
    assert sums_of(data, [Block(0, nbytes)]) == [by_hand(data)]


@both
def test_no_blocks_have_no_sums(sums_of: SumsOf) -> None:
    assert sums_of(bytearray(8), []) == []


@both
def test_a_tensor_of_several_blocks_has_the_sums_of_each(sums_of: SumsOf) -> None:
    data = random_bytes(9 * MIB + 5)
    blocks = [Block(0, 4 * MIB), Block(4 * MIB, 4 * MIB), Block(8 * MIB, MIB + 5)]
    assert sums_of(data, blocks) == [by_hand(data[at : at + nbytes]) for at, nbytes in blocks]


@both
def test_sums_come_in_the_order_in_which_blocks_were_asked_for(sums_of: SumsOf) -> None:
    """Unsorted, with gaps, one twice, two that overlap."""
    data = random_bytes(3 * MIB)
    blocks = [Block(2 * MIB, 999), Block(8, 100), Block(0, 3 * MIB), Block(104, 17), Block(2 * MIB, 999), Block(64, 8)]
    assert sums_of(data, blocks) == [by_hand(data[at : at + nbytes]) for at, nbytes in blocks]


@both
@settings(max_examples=100, deadline=None)
@given(
    st.binary(min_size=400, max_size=400),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 80)), min_size=1, max_size=12),
)
def test_any_blocks_of_any_bytes(sums_of: SumsOf, data: bytes, places: list[tuple[int, int]]) -> None:
    blocks = [Block(8 * word, nbytes) for word, nbytes in places]
    assert sums_of(bytearray(data), blocks) == [by_hand(data[at : at + nbytes]) for at, nbytes in blocks]


def test_memory_of_several_windows_has_the_sums_of_each_block() -> None:
    """Blocks in, across and far beyond the first window. The sink's sums are the witness: Python's would take long."""
    nbytes = 2 * WINDOW_BYTES + 5 * MIB + 3
    memory = np.random.default_rng(7).integers(0, 256, nbytes, dtype=np.uint8)
    across, beyond = WINDOW_BYTES - 2 * MIB, 2 * WINDOW_BYTES + 2 * MIB
    blocks = [Block(at, 4 * MIB) for at in range(0, nbytes - 4 * MIB, 4 * MIB)]
    blocks += [Block(across, 4 * MIB), Block(across + 8, 13), Block(beyond, 3 * MIB + 3), Block(WINDOW_BYTES, 1)]
    view = memory.data
    expected = [kernels().word_sums(view[at : at + size], 0) for at, size in blocks]
    with torch.profiler.profile(profile_memory=True) as profile:
        assert pairs(device_sums(torch.from_numpy(memory), array_of(blocks))) == expected
    assert max(event.self_cpu_memory_usage for event in profile.events()) <= WINDOW_BYTES + MIB
    assert pairs(host_sums(view, array_of(blocks))) == expected


@pytest.mark.parametrize("at_bytes", range(1, 8))
def test_in_host_memory_blocks_may_begin_anywhere(at_bytes: int) -> None:
    """As tensors of a mapped file do."""
    data = random_bytes(1000)
    assert on_host(data, [Block(at_bytes, 805)]) == [by_hand(data[at_bytes : at_bytes + 805])]


def test_many_small_blocks_take_few_calls_of_torch() -> None:
    """As many tensors as a checkpoint has at most: the calls are those of one window, whatever stands in it."""
    memory = np.random.default_rng(8).integers(0, 256, 90_000 * 256, dtype=np.uint8)
    tensor = torch.from_numpy(memory)
    blocks = [Block(256 * n, 1 + n % 256) for n in range(90_000)]
    with torch.profiler.profile() as profile:
        found = device_sums(tensor, array_of(blocks))
    assert len([event for event in profile.events() if event.cpu_parent is None]) < 100
    view = memory.data
    assert pairs(found) == [kernels().word_sums(view[at : at + nbytes], 0) for at, nbytes in blocks]


def test_a_device_tensor_is_not_written_to_and_may_be_a_view() -> None:
    data = random_bytes(1000)
    memory = torch.frombuffer(data, dtype=torch.uint8)
    before = bytes(data)
    assert pairs(device_sums(memory[96:], array_of([Block(8, 801)]))) == [by_hand(before[104:905])]
    assert bytes(data) == before


def test_host_sums_report_bytes_and_stop_when_asked_to() -> None:
    class Counting(Events):
        done_bytes = 0

        def advance(self, nbytes: int) -> None:
            self.done_bytes += nbytes

    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    events = Counting()
    blocks = array_of([Block(0, 4 * MIB), Block(8, 5), Block(16, 4 * MIB - 16)])
    host_sums(memoryview(bytearray(4 * MIB)), blocks, events)
    assert events.done_bytes == 4 * MIB + 5 + 4 * MIB - 16
    with pytest.raises(StoppedError):
        host_sums(memoryview(bytearray(4 * MIB)), blocks, Stopping())


def test_sums_are_read_from_the_text_of_a_manifest() -> None:
    text = f"{1:016x}{2**64 - 1:016x}{0xABC:016x}{3:016x}"
    assert pairs(sums_in(text)) == [(1, 2**64 - 1), (0xABC, 3)]
    assert has_sums(text, 4 * MIB + 1)
    assert has_sums(text, 8 * MIB)
    assert pairs(sums_in("")) == []
    assert has_sums("", 0)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("", 1),
        ("0" * 32, 0),
        ("0" * 32, 4 * MIB + 1),
        ("0" * 31, 1),
        ("0" * 31 + "g", 1),
        ("0" * 15 + "_" + "0" * 16, 1),
        ("0" * 15 + " " + "0" * 16, 1),
    ],
)
def test_what_has_not_32_hex_digits_for_each_block_has_no_sums(text: str, nbytes: int) -> None:
    assert not has_sums(text, nbytes)
