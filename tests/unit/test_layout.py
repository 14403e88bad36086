"""Alignment: what is counted, and that every arrangement keeps the promises of `--align page` and `--align every`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import (
    Align,
    Placed,
    arrange,
    count_alignment,
    fillers_for_every,
    is_filler,
    on_page,
    power_of_two_bytes,
)
from coldctl.loader.order import sort_key
from coldctl.results.facts import AlignmentCount

# Sizes of all kinds: empty, odd, of one power of two, of several, whole pages.
SIZES = st.lists(
    st.one_of(
        st.integers(0, 20_000),
        st.integers(0, 40).map(lambda n: n * 4096),
        st.integers(0, 13).map(lambda n: 1 << n),
        st.integers(1, 64).map(lambda n: n * 256),
    ),
    max_size=30,
)


def tensors(sizes: list[int]) -> list[Tensor]:
    """Tensors without gaps, as a file holds them, with names in no order."""
    made, offset = [], 4096
    for number, nbytes in enumerate(sizes):
        made.append(Tensor(f"t{number * 7919 % 1000:03d}.{number}", "U8", (nbytes,), offset, nbytes))
        offset += nbytes
    return made


def arranged(sizes: list[int], align: Align, shard: int = 1) -> list[Placed]:
    made = tensors(sizes)
    return arrange(made, align, sort_key("name", made), shard)


def offsets(placed: list[Placed]) -> list[int]:
    """Where each tensor begins when the data begin on a page and have no gaps."""
    found, offset = [], 0
    for tensor in placed:
        found.append(offset)
        offset += tensor.nbytes
    return found


def largest_divisor(nbytes: int) -> int:
    return max(power for power in (1 << n for n in range(13)) if nbytes % power == 0)


@given(SIZES)
def test_page_puts_whole_pages_on_pages_and_all_others_on_their_own_power_of_two(sizes: list[int]) -> None:
    placed = arranged(sizes, "page")
    for tensor, offset in zip(placed, offsets(placed), strict=True):
        assert offset % largest_divisor(tensor.nbytes) == 0


@given(SIZES)
def test_page_adds_and_drops_nothing(sizes: list[int]) -> None:
    placed = arranged(sizes, "page")
    assert sorted((p.name, p.nbytes) for p in placed) == sorted((t.name, t.nbytes) for t in tensors(sizes))
    assert all(p.source is not None and p.source.name == p.name for p in placed)


@given(SIZES)
def test_names_ascend_within_an_alignment_group_and_groups_descend(sizes: list[int]) -> None:
    keys = [(-largest_divisor(p.nbytes), p.nbytes > 0, p.name.encode()) for p in arranged(sizes, "page")]
    assert keys == sorted(keys)


@given(SIZES)
def test_every_puts_each_tensor_on_a_page_with_fillers_between_only(sizes: list[int]) -> None:
    placed = arranged(sizes, "every")
    for tensor, offset in zip(placed, offsets(placed), strict=True):
        if tensor.source is not None:
            assert offset % 4096 == 0
    own = [p for p in placed if p.source is not None]
    fillers = [p for p in placed if p.source is None]
    assert sorted((p.name, p.nbytes) for p in own) == sorted((t.name, t.nbytes) for t in tensors(sizes))
    assert all(p.dtype == "U8" and p.shape == (p.nbytes,) and 0 < p.nbytes < 4096 for p in fillers)
    assert len({p.name for p in placed}) == len(placed)
    if placed:
        assert placed[-1].source is not None
    odd = sum(nbytes % 4096 != 0 for nbytes in sizes)
    assert len(fillers) == max(odd - 1, 0) == fillers_for_every(tensors(sizes))


def test_a_worked_example() -> None:
    # Pages first, by name; then 6144 = 3 * 2048, 768 = 3 * 256, and 5 = 5 * 1.
    named = {"b": 8192, "z": 4096, "odd": 5, "half": 6144, "small": 768}
    made = [Tensor(name, "U8", (nbytes,), 0, nbytes) for name, nbytes in named.items()]
    placed = arrange(made, "page", sort_key("name", made), 1)
    assert [(p.name, offset) for p, offset in zip(placed, offsets(placed), strict=True)] == [
        ("b", 0),
        ("z", 8192),
        ("half", 12288),
        ("small", 18432),
        ("odd", 19200),
    ]


def test_fillers_have_names_that_loaders_skip_and_that_no_two_shards_share() -> None:
    first, second = (arranged([5, 6, 4096], "every", shard) for shard in (1, 2))
    (one,) = (p.name for p in first if p.source is None)
    (two,) = (p.name for p in second if p.source is None)
    assert one == "_coldctl_pad.00001.000001.self_attn.rotary_emb.inv_freq"
    assert two == "_coldctl_pad.00002.000001.self_attn.rotary_emb.inv_freq"


def test_only_what_looks_like_a_filler_in_every_way_is_one() -> None:
    name = "_coldctl_pad.00001.000001.self_attn.rotary_emb.inv_freq"
    assert is_filler(Tensor(name, "U8", (4095,), 0, 4095))
    assert not is_filler(Tensor("x" + name, "U8", (5,), 0, 5))
    assert not is_filler(Tensor(name, "I8", (5,), 0, 5))
    assert not is_filler(Tensor(name, "U8", (5, 1), 0, 5))
    assert not is_filler(Tensor(name, "U8", (4096,), 0, 4096))


def test_empty_tensors_come_before_what_lies_at_the_same_offset() -> None:
    placed = arranged([4096, 0, 4096, 0], "page")
    assert [p.nbytes for p in placed] == [0, 0, 4096, 4096]


def test_the_power_of_two_of_a_size() -> None:
    sizes = (0, 1, 2, 3, 12, 4095, 4096, 6144, 8192, 1 << 40)
    assert [power_of_two_bytes(n) for n in sizes] == [4096, 1, 2, 1, 4, 1, 4096, 2048, 4096, 4096]


def test_alignment_is_counted_in_tensors_and_bytes() -> None:
    made = [
        Tensor("page", "F32", (2,), 8192, 8),
        Tensor("256", "F32", (2,), 8192 + 256, 8),
        Tensor("64", "F32", (3,), 8192 + 320, 12),
        Tensor("natural", "F32", (1,), 8192 + 332, 4),
        Tensor("natural bytes", "U8", (1,), 8192 + 337, 1),
        Tensor("not natural", "F32", (4,), 8192 + 338, 16),
        Tensor("complex", "C64", (1,), 8192 + 356, 8),
    ]
    assert count_alignment(made) == [
        AlignmentCount("4096", 1, 8),
        AlignmentCount("256", 2, 16),
        AlignmentCount("64", 3, 28),
        AlignmentCount("natural", 6, 41),
    ]


def test_fillers_do_not_count_as_tensors_on_a_page() -> None:
    filler = Tensor("_coldctl_pad.00001.000000.self_attn.rotary_emb.inv_freq", "U8", (10,), 4096, 10)
    made = [Tensor("a", "U8", (4096,), 8192, 4096), Tensor("b", "U8", (9,), 12289, 9), filler]
    assert on_page(made) == AlignmentCount("4096", 1, 4096)
