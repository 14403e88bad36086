"""What follows from the runs: each contender summed up, the best of coldctl's own ways, and those beside the peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from coldctl.jobs.bench.verdict.bound import bound_of
from coldctl.jobs.bench.verdict.evidence import Rates
from coldctl.jobs.bench.verdict.spread import LEAST_ROUNDS, Ratio, median_ratio, percentile
from coldctl.jobs.bench.verdict.yardstick import yardstick
from coldctl.results.bench import BenchRun, Best, CacheState, Comparison, Contender, Limits, Summary
from coldctl.results.bench_runs import SecondsByRound, cache_states, median_run, runs_of, succeeded, ways


def summaries(
    contenders: Sequence[Contender], runs: Sequence[BenchRun], limits: Limits, *, device: str, cpus: int
) -> list[Summary]:
    """One for each contender in each cache state in which it ran. `cpus` are those that the process may use."""
    return [
        _summary(contender, cache, own, limits, tried, device, cpus)
        for cache in cache_states(runs)
        for tried in [_tried(contenders, runs, cache)]
        for contender in contenders
        if (own := runs_of(runs, contender.name, cache))
    ]


def bests(contenders: Sequence[Contender], runs: Sequence[BenchRun]) -> list[Best]:
    """The best of coldctl's own ways in each cache state in which there are runs.

    The one with the best median is named when the bootstrap's 95 % bounds of the ratio of every other one's seconds to
    its own, round by round, lie over 1. With LEAST_ROUNDS rounds this means that it won all of them.
    """
    return [_best(cache, ways(contenders, runs, cache, "coldctl")) for cache in cache_states(runs)]


def best_of_all(named: Sequence[Best]) -> tuple[str | None, str]:
    """The contender that is best in each cache state, or None; and the reason."""
    names = {best.contender for best in named}
    if len(names) == 1 or None in names:
        reasons = [f"{best.cache}: {f'{best.contender}, ' if best.contender else ''}{best.reason}" for best in named]
        return (None if None in names else names.pop()), "; ".join(reasons)
    if not named:
        return None, "nothing was run"
    return None, "no way is best in each state: " + "; ".join(f"{best.cache}: {best.contender}" for best in named)


def comparisons(contenders: Sequence[Contender], runs: Sequence[BenchRun]) -> list[Comparison]:
    """coldctl's best way, by its median, beside each peer; `uncompared` has the reasons of those that are not here.

    The way is chosen by the same runs: of many ways that are equally fast, the luckiest.
    """
    return [
        Comparison(pair.cache, pair.ours, pair.other, ratio.median, ratio.low, ratio.high)
        for pair in _beside_peers(contenders, runs)
        if (ratio := pair.ratio)
    ]


def uncompared(contenders: Sequence[Contender], runs: Sequence[BenchRun]) -> list[str]:
    """A note for each peer that loaded and cannot be compared."""
    return [
        f"{pair.cache}: {pair.ours} is not compared with {pair.other}: {_too_few(pair)}"
        for pair in _beside_peers(contenders, runs)
        if pair.ratio is None
    ]


def _summary(
    contender: Contender,
    cache: CacheState,
    runs: Sequence[BenchRun],
    limits: Limits,
    tried: Rates,
    device: str,
    cpus: int,
) -> Summary:
    seconds = [run.seconds for run in runs if succeeded(run) and run.seconds]
    failed = [run for run in runs if not succeeded(run)]
    middle = median_run(runs, contender.name, cache)
    rate = limit = bound = None
    if middle:
        rate = middle.bytes_per_second
        limit = yardstick(middle, limits, on_device=device != "cpu").limit
        bound = bound_of(contender, middle, limits, tried, device=device, cpus=cpus)
    return Summary(
        contender=contender.name,
        cache=cache,
        runs=len(seconds),
        failed=len(failed),
        error=failed[0].error if failed else None,
        median_seconds=middle.seconds if middle else None,
        min_seconds=min(seconds, default=None),
        max_seconds=max(seconds, default=None),
        p90_seconds=percentile(seconds, 90),
        p99_seconds=percentile(seconds, 99),
        bytes_per_second=rate,
        limit=limit.name if limit else None,
        limit_share=rate / limit.bytes_per_second if limit and rate is not None else None,
        bound=bound,
    )


def _tried(contenders: Sequence[Contender], runs: Sequence[BenchRun], cache: CacheState) -> Rates:
    """The rate of the fastest of coldctl's own ways of each mode, by their medians."""
    rates: dict[str, float] = {}
    for name in reversed(ways(contenders, runs, cache, "coldctl")):
        middle = median_run(runs, name, cache)
        if middle and middle.mode and middle.bytes_per_second:
            rates[middle.mode] = middle.bytes_per_second
    return rates


def _best(cache: CacheState, loaded: Mapping[str, SecondsByRound]) -> Best:
    if not loaded:
        return Best(cache, None, "none of coldctl's own ways loaded")
    first, *others = loaded
    if not others:
        return Best(cache, None, f"{first} is coldctl's only way that loaded")
    pairs = [_Pair(cache, first, other, loaded[first], loaded[other]) for other in others]
    if doubts := [doubt for pair in pairs if (doubt := _doubt(pair))]:
        more = f"; so it is with {len(doubts) - 1} more" if len(doubts) > 1 else ""
        return Best(cache, None, doubts[0] + more)
    among = f", and apart from all {len(others)} others" if len(others) > 1 else ""
    return Best(cache, first, f"{pairs[0].ratio} times as fast as {others[0]}{among}")


class _Pair(NamedTuple):
    """One of coldctl's own ways beside another way."""

    cache: CacheState
    ours: str
    other: str
    our_seconds: SecondsByRound
    other_seconds: SecondsByRound

    @property
    def rounds(self) -> list[int]:
        """Those in which both loaded."""
        return sorted(self.our_seconds.keys() & self.other_seconds.keys())

    @property
    def ratio(self) -> Ratio | None:
        """Of throughput, ours / the other's; None with too few rounds."""
        if len(self.rounds) < LEAST_ROUNDS:
            return None
        return median_ratio([self.other_seconds[n] for n in self.rounds], [self.our_seconds[n] for n in self.rounds])


def _doubt(pair: _Pair) -> str | None:
    """Why `ours` cannot be said to be faster than the other."""
    ratio = pair.ratio
    if ratio is None:
        return f"{pair.ours} and {pair.other} are not told apart: {_too_few(pair)}"
    return None if ratio.low > 1 else f"{pair.ours} and {pair.other} are not apart: {ratio}"


def _too_few(pair: _Pair) -> str:
    count = len(pair.rounds)
    return f"both loaded in {count} round{'s' * (count != 1)}, and it takes {LEAST_ROUNDS}"


def _beside_peers(contenders: Sequence[Contender], runs: Sequence[BenchRun]) -> Iterator[_Pair]:
    for cache in cache_states(runs):
        ours = ways(contenders, runs, cache, "coldctl")
        for peer, seconds in ways(contenders, runs, cache, "peer").items() if ours else ():
            best = next(iter(ours))
            yield _Pair(cache, best, peer, ours[best], seconds)
