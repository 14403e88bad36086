"""Where tensors stand in the arena, against a slow reference, and what DESIGN promises of every place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.loader.load.place import Placement, Stretch, place
from coldctl.loader.load.wanted import Wanted
from tests.layouts import ELEMENT_BYTES, Size, columns, file, layouts

KIB, MIB = 1 << 10, 1 << 20
COUNTS = [0, 1, 2, 3, 7, 8, 30, 32, 64, 100, 1000, 1024, 4096, 50_000, MIB // 4, MIB, 3 * MIB]


def up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def runs(wanted: Sequence[Wanted]) -> list[tuple[bool, list[int]]]:
    """The numbers of tensors that follow each other in a file, all aligned or all not, and whether they are aligned."""
    found: list[tuple[bool, list[int]]] = []
    for number, each in enumerate(wanted):
        boundary = max(8, 4 if each.dtype == "C64" else ELEMENT_BYTES[each.dtype])
        aligned = each.gather is None and each.offset_bytes % boundary == 0
        before = wanted[number - 1] if number else each
        follows = (
            number > 0
            and before.source is each.source
            and before.offset_bytes + before.nbytes == each.offset_bytes
            and before.gather is None
            and each.gather is None
        )
        if follows and found[-1][0] == aligned:
            found[-1][1].append(number)
        else:
            found.append((aligned, [number]))
    return found


def reference(wanted: Sequence[Wanted]) -> list[int]:
    """The first byte of each tensor, one after the other: a page for a long aligned run, 256 bytes for all else."""
    at: list[int] = []
    end = 0
    for aligned, numbers in runs(wanted):
        first = wanted[numbers[0]]
        kept = aligned and sum(wanted[number].nbytes for number in numbers) >= MIB
        base = up(end, 4096) + first.offset_bytes % 4096
        for number in numbers:
            each = wanted[number]
            at.append(base + each.offset_bytes - first.offset_bytes if kept else up(end, 256))
            end = at[-1] + each.nbytes
    return at


def promises_hold(placement: Placement) -> None:
    wanted, at = placement.wanted, placement.at_bytes
    assert len(wanted) == len(at)
    taken = sorted((at[n], at[n] + each.nbytes) for n, each in enumerate(wanted) if each.nbytes)
    for (_, end), (begin, _) in pairwise(taken):
        assert end <= begin
    for each, at_bytes in placement.placed:
        assert at_bytes % max(8, ELEMENT_BYTES[each.dtype]) == 0
        assert 0 <= at_bytes <= at_bytes + each.nbytes <= placement.arena_bytes
    assert [n for each in placement.stretches for n in range(each.first, each.end)] == list(range(len(wanted)))
    for first, end, kept in placement.stretches:
        for number in range(first, end):
            if kept:
                assert (at[number] - wanted[number].offset_bytes) % 4096 == 0
                assert at[number] - at[first] == wanted[number].offset_bytes - wanted[first].offset_bytes
            else:
                assert at[number] % 256 == 0
    wasted = placement.arena_bytes - sum(each.nbytes for each in wanted)
    kept_stretches = sum(each.kept for each in placement.stretches)
    assert wasted < 2 * 4096 * kept_stretches + 256 * len(wanted) + 1


@given(layouts(COUNTS, 12))
def test_any_layout_is_placed_as_the_reference_does_it(wanted: list[Wanted]) -> None:
    placement = place(wanted)
    promises_hold(placement)
    assert list(placement.at_bytes) == reference(wanted)


def test_a_long_aligned_run_keeps_its_layout_and_its_place_in_a_page() -> None:
    wanted = file("a", 4096 + 136, Size("BF16", 4), Size("F32", MIB), Size("F64", 3), Size("U8", 5))
    placement = place(wanted)
    assert placement.stretches == [Stretch(0, 4, True)]
    assert placement.at_bytes == [136, 144, 144 + 4 * MIB, 144 + 4 * MIB + 24]
    assert placement.arena_bytes == 144 + 4 * MIB + 24 + 5


def test_the_second_run_begins_on_the_next_page_at_its_own_place_in_it() -> None:
    wanted = [*file("a", 8, Size("U8", 2 * MIB)), *file("b", 4096 + 24, Size("U8", 3 * MIB))]
    placement = place(wanted)
    assert placement.at_bytes == [8, 2 * MIB + 4096 + 24]
    assert placement.stretches == [Stretch(0, 1, True), Stretch(1, 2, True)]


def test_a_run_under_a_mebibyte_gets_slots() -> None:
    sizes = [Size("U8", 1000), Size("U8", 8 * KIB), Size("U8", 10)]
    placement = place(file("a", 4096, *sizes))
    assert placement.stretches == [Stretch(0, 3, False)]
    assert placement.at_bytes == [0, 1024, 1024 + 8 * KIB]
    assert placement.arena_bytes == 1024 + 8 * KIB + 10


@pytest.mark.parametrize(("nbytes", "kept"), [(MIB - 8, False), (MIB, True)])
def test_a_run_is_kept_from_one_mebibyte_on(nbytes: int, kept: bool) -> None:
    placement = place(file("a", 24, Size("U8", 8), Size("U8", nbytes - 8)))
    assert placement.stretches == [Stretch(0, 2, kept)]
    assert placement.at_bytes == ([24, 32] if kept else [0, 256])


def test_what_is_misaligned_gets_slots_and_what_follows_aligned_is_kept() -> None:
    """Bytes 9 to 16 push a tensor off its boundary; after the second odd one the file is on 8 bytes again."""
    wanted = file("a", 8, Size("U8", 2 * MIB), Size("U8", 4), Size("F32", MIB), Size("U8", 4), Size("F64", MIB))
    placement = place(wanted)
    assert placement.stretches == [Stretch(0, 2, True), Stretch(2, 4, False), Stretch(4, 5, True)]
    first_end = 8 + 2 * MIB + 4
    slot = up(first_end, 256)
    slots_end = up(slot + 4 * MIB, 256) + 4
    assert placement.at_bytes[:4] == [8, 8 + 2 * MIB, slot, up(slot + 4 * MIB, 256)]
    assert placement.at_bytes[4] == up(slots_end, 4096) + (8 + 2 * MIB + 8 + 4 * MIB) % 4096


def test_complex_numbers_lie_on_eight_bytes_as_all_do() -> None:
    assert place(file("a", 12, Size("C64", MIB))).stretches == [Stretch(0, 1, False)]
    assert place(file("a", 16, Size("C64", MIB))).stretches == [Stretch(0, 1, True)]


def test_tensors_in_another_order_than_the_file_are_runs_of_their_own() -> None:
    first, second, third = file("a", 4096, Size("U8", 2 * MIB), Size("U8", 2 * MIB), Size("U8", 2 * MIB))
    placement = place([third, first, second])
    assert placement.stretches == [Stretch(0, 1, True), Stretch(1, 3, True)]
    assert placement.at_bytes == [0, 2 * MIB, 4 * MIB]


def test_a_tensor_that_is_left_out_ends_a_run() -> None:
    first, _, third = file("a", 4096, Size("U8", 2 * MIB), Size("U8", 8), Size("U8", 2 * MIB))
    placement = place([first, third])
    assert placement.stretches == [Stretch(0, 1, True), Stretch(1, 2, True)]
    assert placement.at_bytes == [0, 2 * MIB + 8]


def test_a_gathered_tensor_stands_alone_in_a_slot() -> None:
    whole = file("a", 4096, Size("F32", MIB), Size("F32", MIB), Size("F32", MIB))
    wanted = [whole[0], columns(whole[1], 16, 1, 2), whole[2]]
    placement = place(wanted)
    assert placement.stretches == [Stretch(0, 1, True), Stretch(1, 2, False), Stretch(2, 3, True)]
    assert placement.at_bytes == [0, 4 * MIB, 6 * MIB]


def test_tensors_without_bytes_take_no_room_and_scalars_a_slot() -> None:
    sizes = [Size("F32", 0), Size("F32", 1), Size("F64", 0), Size("F32", 1), Size("U8", 0)]
    placement = place(file("a", 4096, *sizes))
    assert placement.at_bytes == [0, 0, 256, 256, 512]
    assert placement.arena_bytes == 512
    assert place(file("a", 4096, Size("F32", 0), Size("U8", 0))).arena_bytes == 0


def test_no_tensors_need_no_arena() -> None:
    assert place([]) == Placement([], [], 0, [])


@given(st.integers(1, 200))
def test_one_file_of_aligned_tensors_is_one_read(count: int) -> None:
    placement = place(file("a", 4096, *[Size("F32", 2 * KIB)] * count, Size("U8", MIB)))
    assert placement.stretches == [Stretch(0, count + 1, True)]
    assert placement.arena_bytes == count * 8 * KIB + MIB
