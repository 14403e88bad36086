"""Times that overlap, against counting second by second."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coldctl.loader.load.clock import Interval, covered_seconds, overlap_share, union

MOST = 30

intervals = st.lists(
    st.tuples(st.integers(0, MOST), st.integers(0, MOST)).map(lambda pair: (float(min(pair)), float(max(pair)))),
    max_size=8,
)


def seconds_in(listed: list[Interval]) -> set[int]:
    """The whole seconds that intervals with whole ends cover."""
    return {second for begin, end in listed for second in range(int(begin), int(end))}


@given(intervals)
def test_the_union_covers_what_any_interval_does_and_nothing_twice(listed: list[Interval]) -> None:
    merged = union(listed)
    assert seconds_in(merged) == seconds_in(listed)
    assert all(before[1] < after[0] for before, after in pairwise(merged))
    assert covered_seconds(listed) == len(seconds_in(listed))


def test_intervals_that_touch_are_one() -> None:
    assert union([(2, 3), (0, 1), (1, 2), (5, 6)]) == [(0, 3), (5, 6)]
    assert covered_seconds([]) == 0


@given(st.lists(intervals, max_size=4))
def test_the_overlap_is_the_share_of_busy_seconds_with_two_lanes_or_more(lanes: list[list[Interval]]) -> None:
    busy = [seconds_in(lane) for lane in lanes]
    any_busy = set().union(*busy)
    two_busy = {second for second in any_busy if sum(second in lane for lane in busy) >= 2}
    expected = len(two_busy) / len(any_busy) if any_busy else 0.0
    assert abs(overlap_share(lanes) - expected) < 1e-12


def test_intervals_of_one_lane_do_not_overlap_with_each_other() -> None:
    assert overlap_share([[(0, 4), (1, 3)]]) == 0
    assert overlap_share([[(0, 4), (1, 3)], [(3, 5)]]) == 1 / 5
    assert overlap_share([]) == 0
