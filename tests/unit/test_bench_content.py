"""The sum of all bytes: of any tensor, wherever it is, what plain arithmetic makes of its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coldctl
from coldctl.jobs.bench.content import content_sum, device_sum, host_sum
from tests.loads import library, save_mixed
from tests.tiny import read_folder

MIB = 1 << 20


def added_up(data: bytes) -> int:
    """Word by word, in Python's own whole numbers."""
    return sum(int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))


def random_bytes(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), dtype=np.uint8).copy()


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 15, 16, 4096, 4099])
def test_the_end_of_a_tensor_is_padded_with_zeros(nbytes: int) -> None:
    octets = random_bytes(nbytes)
    assert content_sum([octets]) == content_sum([torch.from_numpy(octets)]) == added_up(octets.tobytes()) % 2**64


def test_words_are_little_endian_and_each_tensor_begins_one() -> None:
    assert content_sum([np.array([1, 2, 3], dtype=np.uint8)]) == 0x030201
    assert content_sum([np.array([1], dtype=np.uint8), np.array([2], dtype=np.uint8)]) == 3
    assert content_sum([torch.tensor([1.0], dtype=torch.float32)]) == 0x3F800000
    assert content_sum([]) == 0


def test_sums_go_round_at_two_to_the_64th() -> None:
    largest = np.full(3, 2**64 - 1, dtype=np.uint64)
    assert content_sum([largest]) == content_sum([torch.from_numpy(largest.view(np.int64))]) == 2**64 - 3
    assert content_sum([largest, largest]) == 2**64 - 6


def test_every_dtype_and_shape_of_a_checkpoint_counts_by_its_bytes(tmp_path: Path) -> None:
    save_mixed(tmp_path)
    expected = sum(added_up(stored.data) for stored in read_folder(tmp_path).values()) % 2**64
    assert content_sum(library(tmp_path).values()) == expected
    with coldctl.open(tmp_path) as checkpoint:
        assert content_sum(checkpoint.load(framework="numpy").values()) == expected
        assert content_sum(checkpoint.load(framework="torch", alloc="map").values()) == expected


def test_tensors_that_are_not_contiguous_count_row_by_row() -> None:
    array = random_bytes(60).reshape(6, 10)
    for view in (array.T, array[::2], array[:, 1::3], array.reshape(-1)[::7]):
        assert content_sum([view]) == content_sum([torch.from_numpy(view)]) == added_up(view.tobytes()) % 2**64


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("nbytes", [0, 5, 8, 1000, 1003])
def test_bytes_may_begin_anywhere(begin: int, nbytes: int) -> None:
    octets = random_bytes(1024)[begin : begin + nbytes]
    expected = added_up(octets.tobytes()) % 2**64
    assert host_sum(octets) % 2**64 == expected
    assert device_sum(torch.from_numpy(octets)) % 2**64 == expected


@pytest.mark.parametrize("begin", [0, 3])
def test_a_device_sums_more_than_one_window(begin: int) -> None:
    words = 16 * MIB + 3  # 128 MiB and three words: two windows, and a part of a third
    octets = torch.ones(begin + 8 * words + 2, dtype=torch.uint8)[begin:]
    assert device_sum(octets) % 2**64 == (0x0101010101010101 * words + 0x0101) % 2**64
