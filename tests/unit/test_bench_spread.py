"""Ratios with their bounds against the bootstrap's exact distribution, and percentiles against their definition."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.jobs.bench.verdict.spread import Ratio, median_ratio, percentile, ratio_of_medians

SECONDS = st.floats(0.01, 1000)


def chances(samples: int) -> list[float]:
    """Of each of an odd number of samples, in ascending order, to be the median of as many draws from them."""
    middle = samples // 2 + 1

    def at_most(rank: int) -> float:
        """More than half of the draws are among the `rank` least."""
        share = rank / samples
        draws = range(middle, samples + 1)
        return sum(comb(samples, n) * share**n * (1 - share) ** (samples - n) for n in draws)

    return [at_most(rank + 1) - at_most(rank) for rank in range(samples)]


def bounds(values: list[float], weights: list[float]) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of values with their chances."""
    order = np.argsort(values)
    cumulated = np.cumsum(np.array(weights)[order])
    low, high = np.searchsorted(cumulated, (0.025, 0.975))
    return np.array(values)[order][low], np.array(values)[order][high]


def test_five_rounds_are_bounded_by_the_least_and_the_greatest() -> None:
    # Three of five draws and more are the least with a chance of 10 * 0.2^3 * 0.8^2 + 5 * 0.2^4 * 0.8 + 0.2^5.
    assert chances(5)[0] == pytest.approx(0.0512 + 0.0064 + 0.00032)
    found = median_ratio([2.0, 3.0, 8.0, 2.2, 9.0], [1.0, 2.0, 2.0, 2.0, 3.0])
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 1.1, 4.0))


@pytest.mark.parametrize("rounds", [7, 15, 31])
def test_the_bounds_of_paired_rounds_are_those_of_the_exact_bootstrap(rounds: int) -> None:
    ratios = [1 + 0.01 * n for n in range(rounds)]
    numerators = [ratio * (1 + n % 3) for n, ratio in enumerate(ratios)]
    found = median_ratio(numerators, [1.0 + n % 3 for n in range(rounds)])
    assert found.median == pytest.approx(ratios[rounds // 2])
    assert (found.low, found.high) == pytest.approx(bounds(ratios, chances(rounds)))


def test_pairs_take_out_what_both_sides_of_a_round_share() -> None:
    """A machine that grows four times slower from round to round changes nothing about a ratio of 1.25."""
    drift = [1.0, 4.0, 2.0, 3.0, 1.5]
    found = median_ratio([1.25 * each for each in drift], drift)
    assert (found.low, found.high) == pytest.approx((1.25, 1.25))
    apart = ratio_of_medians([1.25 * each for each in drift], drift)
    assert apart.median == pytest.approx(1.25)
    assert apart.low < 1 < apart.high


@pytest.mark.parametrize(("above", "below"), [(5, 5), (5, 9), (15, 7)])
def test_the_bounds_of_samples_that_are_no_pairs_are_those_of_both_sides_resampled(above: int, below: int) -> None:
    numerators = [2 + 0.1 * n for n in range(above)]
    denominators = [1 + 0.07 * n for n in range(below)]
    pairs = list(product(range(above), range(below)))
    low, high = bounds(
        [numerators[i] / denominators[j] for i, j in pairs], [chances(above)[i] * chances(below)[j] for i, j in pairs]
    )
    found = ratio_of_medians(numerators[::-1], denominators)
    assert found.median == pytest.approx(numerators[above // 2] / denominators[below // 2])
    # 10,000 draws may hit the neighbour of a quantile: the values near these lie less than 0.06 apart.
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.06)


def test_many_samples_are_resampled_in_parts_and_narrow_the_bounds() -> None:
    samples = 2001
    ratios = [1 + n / samples for n in range(samples)]
    found = median_ratio(ratios, [1.0] * samples)
    # The median's standard error, for samples spread evenly over a width of 1: half of 1 / sqrt(samples).
    assert found.low == pytest.approx(1.5 - 1.96 * 0.5 / samples**0.5, abs=0.002)
    assert found.high == pytest.approx(1.5 + 1.96 * 0.5 / samples**0.5, abs=0.002)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=12), st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_ratio_lies_within_its_bounds_and_scales_with_its_numerators(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    above, below = [each for each, _ in pairs], [each for _, each in pairs]
    for ratio in (median_ratio, ratio_of_medians):
        found = ratio(above, below)
        assert found.low <= found.median <= found.high
        scaled = ratio([factor * each for each in above], below)
        assert scaled == Ratio(factor * found.median, factor * found.low, factor * found.high)


def test_a_ratio_reads_as_a_sentence_needs_it() -> None:
    assert str(Ratio(1.0126, 0.9704, 1.0519)) == "1.01 (95 %: 0.970 to 1.05)"
    assert str(Ratio(0.9494, 0.9, 12.532)) == "0.949 (95 %: 0.900 to 12.5)"


@pytest.mark.parametrize(("samples", "p90", "p99"), [(1, None, None), (9, None, None), (10, 9, None), (11, 10, None)])
def test_few_samples_have_no_far_percentiles(samples: int, p90: float | None, p99: float | None) -> None:
    numbers = list(range(samples, 0, -1))
    assert (percentile(numbers, 90), percentile(numbers, 99)) == (p90, p99)


@pytest.mark.parametrize(("samples", "p99"), [(99, None), (100, 99), (101, 100), (200, 198)])
def test_the_99th_percentile_needs_a_hundred(samples: int, p99: float | None) -> None:
    assert percentile(list(range(1, samples + 1)), 99) == p99


@given(st.lists(SECONDS, min_size=10, max_size=150))
def test_a_percentile_is_the_least_sample_that_so_many_do_not_exceed(samples: list[float]) -> None:
    found = percentile(samples, 90)
    assert found in samples
    assert 100 * sum(each <= found for each in samples) >= 90 * len(samples)
    assert 100 * sum(each < found for each in samples) < 90 * len(samples)
