"""Transfers carry every byte of every tensor to its place, once: copied by numpy here, as the engines would do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coldctl.loader.load import place as place_module
from coldctl.loader.load.place import Placement, place
from coldctl.loader.load.transfers import MOST_PIECES, Transfer, alone, transfers
from coldctl.loader.load.wanted import Gather, Wanted
from tests.layouts import Size, bytes_of_file, columns, file, layouts

PAGE = 4096
COUNTS = [0, 1, 2, 3, 8, 20, 60, 512, 1000, 1024, 3000, 5120]
NOBODYS = 0xEE

Bytes = NDArray[np.uint8]


def contents(wanted: Sequence[Wanted]) -> dict[str, Bytes]:
    """A random file for each source."""
    random = np.random.default_rng(1)
    sizes = {each.source.name: each.source.size_bytes for each in wanted}
    return {name: random.integers(0, 256, nbytes, np.uint8) for name, nbytes in sizes.items()}


def carry(cut: Sequence[Transfer], files: dict[str, Bytes], arena_bytes: int) -> tuple[Bytes, NDArray[np.int64]]:
    """The arena after all transfers, and how often each of its bytes was written."""
    arena = np.full(arena_bytes, NOBODYS, np.uint8)
    writes = np.zeros(arena_bytes, np.int64)
    for each in cut:
        read = files[each.source.name][bytes_of_file(each.offset_bytes, each.nbytes, each.gather)]
        assert len(read) == each.nbytes == sum(nbytes for _, nbytes in each.pieces)
        done = 0
        for at_bytes, nbytes in each.pieces:
            assert at_bytes >= 0
            assert at_bytes + nbytes <= each.span_bytes
            begin = each.at_bytes + at_bytes
            arena[begin : begin + nbytes] = read[done : done + nbytes]
            writes[begin : begin + nbytes] += 1
            done += nbytes
    return arena, writes


def every_byte_is_there_once(placement: Placement, cut: Sequence[Transfer]) -> None:
    files = contents(placement.wanted)
    arena, writes = carry(cut, files, placement.arena_bytes)
    expected = np.zeros(placement.arena_bytes, np.int64)
    for each, at_bytes in placement.placed:
        held = arena[at_bytes : at_bytes + each.nbytes]
        in_file = files[each.source.name][bytes_of_file(each.offset_bytes, each.nbytes, each.gather)]
        assert np.array_equal(held, in_file), each.name
        expected[at_bytes : at_bytes + each.nbytes] += 1
    assert np.array_equal(writes, expected)


def numbers_are_right(placement: Placement, cut: Sequence[Transfer]) -> None:
    """`first` to `end` are the tensors that the transfer brings bytes of, and none else but those without bytes."""
    for each in cut:
        begin, end = each.at_bytes, each.at_bytes + each.span_bytes
        brought = {
            number
            for number, (wanted, at_bytes) in enumerate(placement.placed)
            if wanted.nbytes and at_bytes < end and begin < at_bytes + wanted.nbytes
        }
        among = set(range(each.first, each.end))
        assert brought
        assert brought <= among
        assert all(placement.wanted[number].nbytes == 0 for number in among - brought)
        assert each.name == placement.wanted[each.first].name
        assert {placement.wanted[number].source for number in brought} == {each.source}
    assert [each.first for each in cut] == sorted(each.first for each in cut)


def sizes_are_kept(cut: Sequence[Transfer], chunk_bytes: int) -> None:
    for each in cut:
        assert 0 < each.nbytes <= each.span_bytes <= chunk_bytes
        assert 1 <= len(each.pieces) <= MOST_PIECES
        assert each.pieces[0][0] == 0
        assert all(nbytes for _, nbytes in each.pieces)
        assert all(sum(a) <= b[0] for a, b in pairwise(each.pieces))


def kept_stretches_are_cut_on_pages_of_the_file(
    placement: Placement, cut: Sequence[Transfer], boundaries: Sequence[int], chunk_bytes: int
) -> None:
    for before, after in pairwise(cut):
        stretch = next(each for each in placement.stretches if each.first <= before.first < each.end)
        if not stretch.kept or not stretch.first <= after.first < stretch.end or after.first in boundaries:
            continue
        assert after.offset_bytes == before.offset_bytes + before.nbytes
        assert after.offset_bytes % chunk_bytes == 0
        assert after.at_bytes % PAGE == 0
    for each in cut:
        if any(stretch.kept and stretch.first <= each.first < stretch.end for stretch in placement.stretches):
            assert each.in_place
            assert (each.at_bytes - each.offset_bytes) % PAGE == 0


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Wanted], int, list[int]]:
    """Tensors, the size of a chunk, and where no transfer may cross."""
    wanted = draw(layouts(COUNTS, 10))
    inside = st.integers(0, max(len(wanted) - 1, 0))
    return wanted, PAGE * draw(st.sampled_from([1, 2, 3, 5, 16])), sorted(draw(st.sets(inside, max_size=3)))


@settings(max_examples=150)
@given(plans())
def test_any_plan_is_carried_whole_and_once(plan: tuple[list[Wanted], int, list[int]]) -> None:
    wanted, chunk_bytes, boundaries = plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_module, "KEPT_AT_LEAST_BYTES", 2 * PAGE)  # as 1 MiB is to a chunk of some MiB
        placement = place(wanted)
    cut = list(transfers(placement, chunk_bytes, boundaries))
    every_byte_is_there_once(placement, cut)
    numbers_are_right(placement, cut)
    sizes_are_kept(cut, chunk_bytes)
    kept_stretches_are_cut_on_pages_of_the_file(placement, cut, boundaries, chunk_bytes)
    assert not any(each.first < boundary < each.end for each in cut for boundary in boundaries)


MIB = 1 << 20


def cut_of(wanted: Sequence[Wanted], chunk_bytes: int, boundaries: Sequence[int] = ()) -> list[Transfer]:
    return list(transfers(place(wanted), chunk_bytes, boundaries))


def test_a_kept_run_is_cut_at_multiples_of_the_chunk_in_the_file() -> None:
    wanted = file("a", 4096, Size("U8", 3 * MIB), Size("U8", 2 * MIB))
    cut = cut_of(wanted, 2 * MIB)
    assert [(each.offset_bytes, each.nbytes, each.at_bytes) for each in cut] == [
        (4096, 2 * MIB - 4096, 0),
        (2 * MIB, 2 * MIB, 2 * MIB - 4096),
        (4 * MIB, MIB + 4096, 4 * MIB - 4096),
    ]
    assert [(each.first, each.end) for each in cut] == [(0, 1), (0, 2), (1, 2)]


def test_a_boundary_cuts_a_kept_run_between_its_tensors() -> None:
    wanted = file("a", 4096, Size("U8", MIB), Size("U8", MIB), Size("U8", MIB))
    cut = cut_of(wanted, 16 * MIB, [0, 2])
    assert [(each.first, each.end, each.nbytes) for each in cut] == [(0, 2, 2 * MIB), (2, 3, MIB)]


def test_small_neighbours_go_together_at_most_a_thousand() -> None:
    wanted = file("a", 4096, *[Size("U8", 3)] * 2500)
    cut = cut_of(wanted, 4 * MIB)
    assert [(each.first, each.end) for each in cut] == [(0, 1000), (1000, 2000), (2000, 2500)]
    assert [each.nbytes for each in cut] == [3000, 3000, 1500]
    assert cut[1].offset_bytes == 4096 + 3000
    assert cut[0].pieces[:2] == [(0, 3), (256, 3)]
    assert not cut[0].in_place


def test_tensors_without_bytes_are_in_no_transfer_alone() -> None:
    assert cut_of(file("a", 4096, Size("F32", 0), Size("U8", 0)), MIB) == []
    (only,) = cut_of(file("a", 4096, Size("F32", 0), Size("U8", 5), Size("U8", 0)), MIB)
    assert only.pieces == [(0, 5)]
    assert only.nbytes == 5


def test_a_large_tensor_in_a_slot_goes_in_pieces_and_its_neighbours_do_not_join() -> None:
    wanted = file("a", 4097, Size("U8", 10), Size("U8", 2 * MIB + 1), Size("U8", 10))
    cut = cut_of(wanted, MIB)
    assert [(each.first, each.end, each.nbytes) for each in cut] == [
        (0, 1, 10),
        (1, 2, MIB),
        (1, 2, MIB),
        (1, 2, 1),
        (2, 3, 10),
    ]


def test_strips_go_as_many_at_once_as_fit_a_chunk() -> None:
    (whole,) = file("a", 4096, Size("F32", 7 * 1024))
    cut = cut_of([columns(whole, 7, 1, 2)], 3 * 2048)
    assert [each.gather for each in cut] == [Gather(3, 2048, 4096), Gather(3, 2048, 4096), Gather(1, 2048, 4096)]
    assert [each.offset_bytes - 4096 for each in cut] == [2048, 2048 + 3 * 4096, 2048 + 6 * 4096]
    assert [each.at_bytes for each in cut] == [0, 3 * 2048, 6 * 2048]


def test_a_strip_over_a_chunk_is_cut_as_a_tensor_is() -> None:
    (whole,) = file("a", 4096, Size("U8", 4 * 10_000))
    cut = cut_of([columns(whole, 2, 1, 2)], 8192)
    assert [(each.offset_bytes - 4096, each.nbytes) for each in cut] == [
        (10_000, 8192),
        (18_192, 1808),
        (30_000, 8192),
        (38_192, 1808),
    ]
    assert all(each.in_place for each in cut)


@settings(max_examples=30)
@given(layouts([0, 1, 8, 500, 5120], 6))
def test_alone_brings_one_tensor_to_memory_of_its_own(wanted: list[Wanted]) -> None:
    files = contents(wanted)
    for number, each in enumerate(wanted):
        transfer = alone(each, number)
        assert (transfer.first, transfer.end, transfer.name) == (number, number + 1, each.name)
        held, _ = carry([transfer], files, each.nbytes)
        assert np.array_equal(held, files[each.source.name][bytes_of_file(each.offset_bytes, each.nbytes, each.gather)])


@given(st.lists(st.integers(1, 49_999), max_size=5, unique=True))
def test_the_parts_of_a_transfer_are_the_transfer(cuts: list[int]) -> None:
    wanted = file("a", 4096 + 64, Size("U8", 50_000))
    placement = place(wanted)
    (whole,) = transfers(placement, MIB)
    every_byte_is_there_once(placement, list(parts(whole, sorted(cuts))))
    assert all((each.first, each.end, each.span_bytes) == (0, 1, each.nbytes) for each in parts(whole, sorted(cuts)))


def parts(whole: Transfer, cuts: Sequence[int]) -> Iterator[Transfer]:
    return (whole.part(begin, end) for begin, end in pairwise([0, *cuts, whole.nbytes]))
