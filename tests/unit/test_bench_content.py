"""The sum of all bytes: of any tensor, wherever it is, what plain arithmetic makes of its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coldctl
from coldctl.jobs.bench.child.content import content_sum, device_sum, host_sum
from tests.bench_content import added_up, total_of, total_of_folder
from tests.loads import library, save_mixed

MIB = 1 << 20


def random_bytes(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), dtype=np.uint8).copy()


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 15, 16, 4095, 4096, 4099, 8192, 12297])
def test_the_end_of_a_tensor_is_padded_with_zeros(nbytes: int) -> None:
    octets = random_bytes(nbytes)
    expected = total_of({"w": octets.tobytes()})
    assert content_sum({"w": octets}) == content_sum({"w": torch.from_numpy(octets)}) == expected


def test_words_are_little_endian_and_each_tensor_begins_one() -> None:
    """A tensor without a name counts once: the CRC-32 of nothing is 0."""
    assert content_sum({"": np.array([1, 2, 3], dtype=np.uint8)}) == 0x030201
    assert content_sum({"": torch.tensor([1.0], dtype=torch.float32)}) == 0x3F800000
    assert content_sum({}) == 0


def test_a_name_counts_by_its_crc_32() -> None:
    """0xCBF43926 is the published check value."""
    one, two = np.array([1], dtype=np.uint8), np.array([2], dtype=np.uint8)
    assert content_sum({"123456789": one}) == 2 * 0xCBF43926 + 1
    assert content_sum({"123456789": one, "": two}) == 2 * 0xCBF43926 + 1 + 2
    assert content_sum({"123456789": two, "": one}) != content_sum({"123456789": one, "": two})


def test_sums_go_round_at_two_to_the_64th() -> None:
    largest = np.full(3, 2**64 - 1, dtype=np.uint64)
    assert content_sum({"": largest}) == content_sum({"": torch.from_numpy(largest.view(np.int64))}) == 2**64 - 3


def test_every_dtype_and_shape_of_a_checkpoint_counts_by_its_bytes(tmp_path: Path) -> None:
    save_mixed(tmp_path)
    expected = total_of_folder(tmp_path)
    assert content_sum(library(tmp_path)) == expected
    with coldctl.open(tmp_path) as checkpoint:
        assert content_sum(checkpoint.load(framework="numpy")) == expected
        assert content_sum(checkpoint.load(framework="torch", alloc="map")) == expected


def test_tensors_that_are_not_contiguous_count_row_by_row() -> None:
    array = random_bytes(60).reshape(6, 10)
    for view in (array.T, array[::2], array[:, 1::3], array.reshape(-1)[::7]):
        expected = total_of({"v": view.tobytes()})
        assert content_sum({"v": view}) == content_sum({"v": torch.from_numpy(view)}) == expected


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("nbytes", [0, 5, 8, 1000, 1003])
def test_bytes_may_begin_anywhere(begin: int, nbytes: int) -> None:
    octets = random_bytes(1024)[begin : begin + nbytes]
    expected = added_up(octets.tobytes()) % 2**64
    assert host_sum(octets) % 2**64 == expected
    assert device_sum(torch.from_numpy(octets)) % 2**64 == expected


@pytest.mark.parametrize("begin", [0, 3])
def test_a_device_sums_more_than_one_window(begin: int) -> None:
    pages = 32 * 1024 + 1  # 128 MiB and a page: two windows, and a part of a third; and three words and two bytes
    octets = torch.ones(begin + 4096 * pages + 3 * 8 + 2, dtype=torch.uint8)[begin:]
    # The first n odd numbers add up to n².
    words = 512 * pages**2 + 3 * (2 * pages + 1)
    expected = (0x0101010101010101 * words + 0x0101 * (2 * pages + 1)) % 2**64
    assert device_sum(octets) % 2**64 == host_sum(octets.numpy()) % 2**64 == expected


def test_pages_that_were_swapped_are_another_sum() -> None:
    octets = random_bytes(5 * 4096)
    swapped = np.concatenate([octets[8192:12288], octets[4096:8192], octets[:4096], octets[12288:]])
    assert content_sum({"w": octets}) != content_sum({"w": swapped})
    assert content_sum({"w": torch.from_numpy(octets)}) != content_sum({"w": torch.from_numpy(swapped)})
