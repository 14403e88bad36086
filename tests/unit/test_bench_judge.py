"""Summaries, bests and comparisons, from seconds whose medians, ratios and ranks can be read off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coldctl.jobs.bench.verdict.judge import best_of_all, bests, comparisons, summaries, uncompared
from coldctl.results.bench import BenchRun, Best, CacheState, Comparison
from coldctl.results.bench_runs import median_run
from tests.bench_results import contender, failed_run, gpu_limits, gpu_run, limits, peer, run

RING, DIRECT, MAP = contender("ring"), contender("direct"), contender("map")
THEIRS, OTHERS = peer("safetensors"), peer("runai")


MORE = "; the timeline of --report may show more"


def rounds(name: str, seconds: Sequence[float], cache: CacheState = "cold") -> list[BenchRun]:
    return [run(name, cache, each, round=number) for number, each in enumerate(seconds)]


def test_a_contender_is_summed_up_in_each_cache_state_cold_first() -> None:
    runs = [*rounds("ring", [1.0, 1.1], "warm"), *rounds("ring", [4.0]), *rounds("map", [0.5], "warm")]
    found = summaries([MAP, RING], runs, limits(), device="cpu", cpus=16)
    assert [(each.contender, each.cache) for each in found] == [("ring", "cold"), ("map", "warm"), ("ring", "warm")]


def test_a_summary_holds_median_least_and_most() -> None:
    (found,) = summaries([DIRECT], rounds("direct", [4.2, 4.0, 3.9, 5.0, 4.1]), limits(), device="cpu", cpus=16)
    assert (found.runs, found.failed, found.error) == (5, 0, None)
    assert (found.median_seconds, found.min_seconds, found.max_seconds) == (4.1, 3.9, 5.0)
    assert (found.p90_seconds, found.p99_seconds) == (None, None)
    assert found.bytes_per_second == pytest.approx(8e9 / 4.1)
    assert found.limit == "disk_direct"
    assert found.limit_share == pytest.approx(8e9 / 4.1 / 2.5e9)


def test_of_two_in_the_middle_the_slower_is_the_median_and_all_figures_are_of_that_run() -> None:
    runs = [replace(each, stages=()) for each in rounds("direct", [5.0, 3.0, 9.0, 2.0])]
    (found,) = summaries([DIRECT], runs, limits(), device="cpu", cpus=16)
    # 8 GB in 5 s are 1.6 GB/s, 64 % of 2.5.
    assert (found.median_seconds, found.bytes_per_second) == (5.0, 1.6e9)
    assert found.limit_share == pytest.approx(0.64)
    assert found.bound == "not known: 64 % of what the disk gives to direct reads, and no stage stands out" + MORE
    assert median_run(runs, "direct", "cold") == runs[0]


def test_what_a_mode_gave_is_what_its_fastest_way_gave() -> None:
    # Reads through the page cache at 1 GB/s, 90.9 % of what they are measured by, where direct reads are given 2.5.
    ways = [contender("buffered"), contender("direct"), contender("direct, 4 streams")]
    slow = limits(disk_buffered_bytes_per_second=1.1e9)
    buffered, direct = rounds("buffered", [8.0]), rounds("direct", [9.0])
    faster = [replace(each, contender="direct, 4 streams") for each in rounds("direct", [7.0])]
    for runs, advised in (([*buffered, *direct], False), ([*buffered, *direct, *faster], True)):
        found, *_ = summaries(ways, runs, slow, device="cpu", cpus=16)
        assert ("mode direct" in (found.bound or "")) == advised


def test_a_hundred_rounds_have_percentiles() -> None:
    (found,) = summaries([DIRECT], rounds("direct", list(range(100, 0, -1))), limits(), device="cpu", cpus=16)
    assert (found.p90_seconds, found.p99_seconds) == (90, 99)


def test_runs_that_failed_are_counted_and_kept_out_of_the_figures() -> None:
    runs = [*rounds("direct", [4.0, 4.2]), failed_run("direct", round=2), failed_run("direct", round=3, error="later")]
    (found,) = summaries([DIRECT], runs, limits(), device="cpu", cpus=16)
    assert (found.runs, found.failed, found.error) == (2, 2, "it crashed")
    assert found.median_seconds == 4.2


def test_of_a_contender_that_always_failed_nothing_was_measured() -> None:
    (found,) = summaries([THEIRS], [failed_run("safetensors")], limits(), device="cpu", cpus=16)
    assert (found.runs, found.failed, found.error) == (0, 1, "it crashed")
    figures = (found.median_seconds, found.min_seconds, found.max_seconds, found.p90_seconds, found.bytes_per_second)
    assert figures == (None,) * 5
    assert (found.limit, found.limit_share, found.bound) == (None, None, None)


def test_a_load_onto_a_gpu_is_measured_by_the_slowest_of_what_it_passes() -> None:
    runs = [gpu_run("ring", "cold", 4.0), gpu_run("ring", "warm", 1.0)]
    cold, warm = summaries([RING], runs, gpu_limits(), device="cuda:0", cpus=16)
    assert (cold.limit, warm.limit) == ("disk_direct", "memcpy")
    assert (cold.limit_share, warm.limit_share) == pytest.approx((2e9 / 2.5e9, 8e9 / 10e9))
    narrow = {f"h2d_{streams}_bytes_per_second": 2e9 + streams for streams in (1, 2, 4)}
    cold, warm = summaries([RING], runs, gpu_limits(**narrow), device="cuda:0", cpus=16)
    assert (cold.limit, warm.limit) == ("h2d_4", "h2d_4")
    assert cold.limit_share == pytest.approx(2e9 / (2e9 + 4))


def test_the_way_that_won_every_round_is_named() -> None:
    # direct / ring, round by round: 1.1, 1.2, 1.3, 1.25, 1.05.
    runs = [
        *rounds("ring", [1.0, 2.0, 1.0, 4.0, 2.0]),
        *rounds("direct", [1.1, 2.4, 1.3, 5.0, 2.1]),
        *rounds("safetensors", [0.1] * 5),
    ]
    reason = "1.20 (95 %: 1.05 to 1.30) times as fast as direct"
    assert bests([DIRECT, RING, THEIRS], runs) == [Best("cold", "ring", reason)]


def test_a_way_that_lost_one_round_of_five_is_not_named() -> None:
    # Medians 1.00 and 1.02, and one round in which direct took 0.97 of ring's time.
    runs = [*rounds("ring", [1.0] * 5), *rounds("direct", [1.02, 1.01, 1.05, 0.97, 1.03])]
    reason = "ring and direct are not apart: 1.02 (95 %: 0.970 to 1.05)"
    assert bests([RING, DIRECT], runs) == [Best("cold", None, reason)]


def test_one_tie_among_several_ways_is_enough_to_name_none() -> None:
    tied = [0.99, 1.01, 1.02, 1.03, 1.04]
    runs = [*rounds("ring", [1.0] * 5), *rounds("map", [2.0] * 5), *rounds("direct", tied)]
    (best,) = bests([MAP, RING, DIRECT], runs)
    assert best == Best("cold", None, "ring and direct are not apart: 1.02 (95 %: 0.990 to 1.04)")
    (best,) = bests([MAP, RING, DIRECT], [*rounds("map", tied), *runs[:5], *runs[10:]])
    assert best.contender is None
    assert best.reason.endswith("; so it is with 1 more")


def test_the_best_of_several_ways_is_apart_from_all() -> None:
    runs = [*rounds("ring", [1.0] * 5), *rounds("map", [2.0] * 5), *rounds("direct", [3.0] * 5)]
    reason = "2.00 (95 %: 2.00 to 2.00) times as fast as map, and apart from all 2 others"
    assert bests([MAP, DIRECT, RING], runs) == [Best("cold", "ring", reason)]


@pytest.mark.parametrize("count", [1, 4])
def test_a_few_rounds_rank_nothing_however_far_apart(count: int) -> None:
    runs = [*rounds("ring", [1.0] * count), *rounds("direct", [9.0] * count)]
    (best,) = bests([RING, DIRECT], runs)
    assert best.contender is None
    assert best.reason == (
        f"ring and direct are not told apart: both loaded in {count} round{'s' if count > 1 else ''}, and it takes 5"
    )


def test_only_rounds_in_which_both_loaded_are_pairs() -> None:
    runs = [*rounds("ring", [1.0] * 5), *rounds("direct", [2.0] * 5)]
    runs[7] = failed_run("direct", round=2)
    (best,) = bests([RING, DIRECT], runs)
    assert best.reason == "ring and direct are not told apart: both loaded in 4 rounds, and it takes 5"


def test_one_way_alone_is_compared_with_nothing() -> None:
    runs = [*rounds("ring", [1.0] * 5), *(failed_run("direct", round=n) for n in range(5))]
    reason = "ring is coldctl's only way that loaded"
    assert bests([RING, DIRECT, THEIRS], [*runs, *rounds("safetensors", [2.0] * 5)]) == [Best("cold", None, reason)]


def test_where_no_own_way_loaded_none_is_best() -> None:
    runs = [*rounds("safetensors", [2.0] * 5, "warm"), failed_run("ring", "warm")]
    assert bests([RING, THEIRS], runs) == [Best("warm", None, "none of coldctl's own ways loaded")]
    assert comparisons([RING, THEIRS], runs) == []
    assert uncompared([RING, THEIRS], runs) == []


def test_one_mode_is_best_of_all_when_it_is_in_each_state() -> None:
    cold, warm = Best("cold", "ring", "faster than direct"), Best("warm", "ring", "faster than map")
    assert best_of_all([cold, warm]) == ("ring", "cold: ring, faster than direct; warm: ring, faster than map")
    assert best_of_all([warm]) == ("ring", "warm: ring, faster than map")


def test_no_mode_is_best_of_all_where_the_states_differ_or_leave_it_open() -> None:
    cold, warm = Best("cold", "direct", "faster"), Best("warm", "map", "faster")
    assert best_of_all([cold, warm]) == (None, "no way is best in each state: cold: direct; warm: map")
    open_ = Best("warm", None, "not apart")
    assert best_of_all([cold, open_]) == (None, "cold: direct, faster; warm: not apart")
    assert best_of_all([]) == (None, "nothing was run")


def test_peers_are_held_against_the_own_way_with_the_best_median() -> None:
    # Ratios theirs / ring's, round by round: 1.5, 2, 2.5, 1, 3 and 0.5 in all.
    runs = [
        *rounds("direct", [4.0] * 5),
        *rounds("ring", [2.0, 1.0, 2.0, 2.0, 1.0]),
        *rounds("safetensors", [3.0, 2.0, 5.0, 2.0, 3.0]),
        *rounds("runai", [1.0, 0.5, 1.0, 1.0, 0.5]),
    ]
    assert comparisons([DIRECT, RING, OTHERS, THEIRS], runs) == [
        Comparison("cold", "ring", "runai", 0.5, 0.5, 0.5),
        Comparison("cold", "ring", "safetensors", 2.0, 1.0, 3.0),
    ]


def test_a_peer_with_too_few_rounds_is_named_and_not_judged() -> None:
    runs = [*rounds("ring", [1.0] * 5), *rounds("safetensors", [2.0] * 2), failed_run("runai")]
    assert comparisons([RING, THEIRS, OTHERS], runs) == []
    told = "cold: ring is not compared with safetensors: both loaded in 2 rounds, and it takes 5"
    assert uncompared([RING, THEIRS, OTHERS], runs) == [told]


def test_the_median_run_is_one_that_succeeded() -> None:
    runs = [failed_run("ring"), *rounds("ring", [3.0, 1.0, 2.0])]
    found = median_run(runs, "ring", "cold")
    assert found is not None
    assert found.seconds == 2.0
    assert median_run([failed_run("ring")], "ring", "cold") is None
