"""Plans: which bytes, in which order, against sets of bytes worked out one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Header, Tensor
from coldctl.loader.order import ORDERS, Order
from coldctl.loader.plan import Segment
from coldctl.loader.source import LocalFile

MIB = 1 << 20


def shard(name: str, sizes: dict[str, int], header_bytes: int = 64) -> Shard:
    made, offset = [], header_bytes
    for tensor, nbytes in sizes.items():
        made.append(Tensor(tensor, "U8", (nbytes,), offset, nbytes))
        offset += nbytes
    made.sort(key=lambda t: (t.offset_bytes, t.nbytes, t.name))
    return Shard(name, f"/weights/{name}", offset, (1, 2, offset, 3), Header(header_bytes, None, tuple(made), ()))


def checkpoint(*shards: Shard) -> Checkpoint:
    return Checkpoint("/weights", None, None, shards, (), False)


def names(pairs: list[tuple[Shard, Tensor]]) -> list[str]:
    return [f"{shard.name}:{tensor.name}" for shard, tensor in pairs]


TWO = checkpoint(
    shard("1", {"m.layers.1.mlp.w": 10, "lm_head.w": 10, "m.layers.0.self_attn.w": 10}),
    shard("2", {"m.layers.0.mlp.w": 10, "embed.w": 10, "m.layers.1.self_attn.w": 10}),
)


def test_name_and_file_order_go_shard_by_shard() -> None:
    assert names(plan.ordered_tensors(TWO, "name")) == [
        "1:lm_head.w", "1:m.layers.0.self_attn.w", "1:m.layers.1.mlp.w",
        "2:embed.w", "2:m.layers.0.mlp.w", "2:m.layers.1.self_attn.w",
    ]  # fmt: skip
    assert names(plan.ordered_tensors(TWO, "file")) == [
        "1:m.layers.1.mlp.w", "1:lm_head.w", "1:m.layers.0.self_attn.w",
        "2:m.layers.0.mlp.w", "2:embed.w", "2:m.layers.1.self_attn.w",
    ]  # fmt: skip


def test_the_other_orders_cross_shards() -> None:
    assert names(plan.ordered_tensors(TWO, "layers")) == [
        "2:embed.w", "2:m.layers.0.mlp.w", "1:m.layers.0.self_attn.w",
        "1:m.layers.1.mlp.w", "2:m.layers.1.self_attn.w", "1:lm_head.w",
    ]  # fmt: skip
    assert names(plan.ordered_tensors(TWO, "attention-first")) == [
        "1:m.layers.0.self_attn.w", "2:m.layers.1.self_attn.w",
        "2:embed.w", "2:m.layers.0.mlp.w", "1:m.layers.1.mlp.w", "1:lm_head.w",
    ]  # fmt: skip


def test_shards_stay_in_the_order_of_the_checkpoint() -> None:
    ten = checkpoint(shard("shard-2", {"z": 1}), shard("shard-10", {"a": 1}))
    assert names(plan.ordered_tensors(ten, "name")) == ["shard-2:z", "shard-10:a"]


def test_neighbours_are_joined_up_to_64_mib() -> None:
    one = checkpoint(shard("1", {"a": 40 * MIB, "b": 24 * MIB, "c": 1, "d": 100 * MIB, "e": 2}))
    segments = list(plan.tensor_segments(plan.ordered_tensors(one, "file")))
    assert [[t.name for t in s.tensors] for s in segments] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [s.nbytes for s in segments] == [64 * MIB, 1, 100 * MIB, 2]
    assert [s.offset_bytes for s in segments] == [64, 64 + 64 * MIB, 65 + 64 * MIB, 65 + 164 * MIB]


def test_what_is_apart_in_the_file_or_in_another_file_is_not_joined() -> None:
    one = shard("1", {"a": 10, "b": 10, "c": 10})
    first, second, third = one.header.tensors
    assert [s.nbytes for s in plan.tensor_segments([(one, first), (one, third), (one, second)])] == [10, 10, 10]
    other = shard("2", {"a": 10, "b": 10, "c": 10})
    assert [s.nbytes for s in plan.tensor_segments([(one, first), (other, other.header.tensors[1])])] == [10, 10]


def test_a_segment_carries_its_whole_tensors_empty_ones_too() -> None:
    one = checkpoint(shard("1", {"a": 10, "empty": 0, "b": 5}))
    (segment,) = plan.tensor_segments(plan.ordered_tensors(one, "file"))
    assert [t.name for t in segment.tensors] == ["a", "empty", "b"]
    assert (segment.offset_bytes, segment.nbytes) == (64, 15)


def test_runs_of_pages_begin_with_the_header_and_are_cut_at_multiples_of_64_mib() -> None:
    one = checkpoint(shard("1", {"a": 150 * MIB}, header_bytes=70 * MIB), shard("2", {"b": 3}))
    found = [(s.source.name, s.offset_bytes, s.nbytes) for s in plan.page_segments(one, "name")]
    assert found == [
        ("1", 0, 64 * MIB),
        ("1", 64 * MIB, 64 * MIB),
        ("1", 128 * MIB, 64 * MIB),
        ("1", 192 * MIB, 28 * MIB),
        ("2", 0, 67),
    ]


def test_a_header_is_read_before_the_first_tensor_of_its_file() -> None:
    found = [(s.source.name, s.offset_bytes, s.nbytes) for s in plan.page_segments(TWO, "layers")]
    assert found == [
        ("2", 0, 64), ("2", 74, 10), ("2", 64, 10), ("1", 0, 64), ("1", 84, 10),
        ("1", 64, 10), ("2", 84, 10), ("1", 74, 10),
    ]  # fmt: skip


def test_a_shard_without_tensors_is_covered_too() -> None:
    found = [(s.source.name, s.nbytes) for s in plan.page_segments(checkpoint(shard("1", {})), "name")]
    assert found == [("1", 64)]


NAMES = st.sampled_from([f"m.layers.{n}.{part}.w" for n in range(4) for part in ("self_attn", "mlp")] + ["e", "norm"])
SHARDS = st.lists(st.dictionaries(NAMES, st.integers(0, 40), max_size=8), min_size=1, max_size=3)


@given(SHARDS, st.sampled_from(ORDERS))
def test_segments_cover_every_byte_of_every_file_once(sizes: list[dict[str, int]], order: Order) -> None:
    made = checkpoint(*(shard(str(number), each) for number, each in enumerate(sizes)))
    seen = [
        (f"/weights/{segment.source.name}", offset)
        for segment in plan.page_segments(made, order)
        for offset in range(segment.offset_bytes, segment.offset_bytes + segment.nbytes)
    ]
    assert sorted(seen) == sorted((s.path, offset) for s in made.shards for offset in range(s.size_bytes))


@given(SHARDS, st.sampled_from(ORDERS))
def test_segments_of_tensors_hold_each_tensor_once_in_order(sizes: list[dict[str, int]], order: Order) -> None:
    made = checkpoint(*(shard(str(number), each) for number, each in enumerate(sizes)))
    pairs = plan.ordered_tensors(made, order)
    segments = list(plan.tensor_segments(pairs))
    assert [(s.source.name, t) for s in segments for t in s.tensors] == [(own.name, t) for own, t in pairs]
    for segment in segments:
        end = segment.offset_bytes
        for tensor in segment.tensors:
            assert tensor.offset_bytes == end
            end += tensor.nbytes
        assert end == segment.offset_bytes + segment.nbytes


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=6)
CUTS = st.lists(st.integers(0, 25), max_size=8)


@given(RANGES, CUTS)
def test_only_keeps_the_missing_bytes_in_plan_order(gaps: list[tuple[int, int]], cuts: list[int]) -> None:
    missing, offset = [], 0
    for gap, length in gaps:
        missing.append((offset + gap, length))
        offset += gap + length
    source = LocalFile("1", "/weights/1", (1, 2, 3, 4))
    segments, start = [], 0
    for nbytes in cuts:
        segments.append(Segment(source, start, nbytes))
        start += nbytes
    segments.reverse()
    wanted = {offset for first, length in missing for offset in range(first, first + length)}
    expected = [o for s in segments for o in range(s.offset_bytes, s.offset_bytes + s.nbytes) if o in wanted]
    kept = list(plan.only(segments, {"1": missing}))
    assert [o for s in kept for o in range(s.offset_bytes, s.offset_bytes + s.nbytes)] == expected
    assert all(s.nbytes > 0 for s in kept)


def test_only_asks_each_file_for_its_own_ranges() -> None:
    first, second = LocalFile("1", "/weights/1", (1, 2, 3, 4)), LocalFile("2", "/weights/2", (1, 3, 3, 4))
    missing = {"1": [(2, 3)], "2": [(0, 1), (9, 9)]}
    kept = plan.only([Segment(second, 0, 10), Segment(first, 0, 10)], missing)
    assert [(s.source.name, s.offset_bytes, s.nbytes) for s in kept] == [("2", 0, 1), ("2", 9, 1), ("1", 2, 3)]
