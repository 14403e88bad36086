"""The runs against a baseline: slower than is allowed only where the spread of both bears it out."""

from __future__ import annotations

from collections.abc import Sequence

from coldctl.jobs.bench.verdict.baseline import Baseline, Way
from coldctl.jobs.bench.verdict.spread import LEAST_ROUNDS, Ratio, ratio_of_medians
from coldctl.results.bench import BenchRun, Contender, HostFacts, Regression
from coldctl.results.bench_runs import cache_states, seconds_by_round
from coldctl.units import format_ratio

MAX_REGRESSION = 0.1


def regressions(
    baseline: Baseline, runs: Sequence[BenchRun], contenders: Sequence[Contender], max_regression: float | None
) -> list[Regression]:
    """Every way with LEAST_ROUNDS rounds and more on both sides; `unjudged` names the others.

    The samples were not taken in turns, so whatever else was different on that day counts as well. `max_regression` is
    how much slower than the baseline is allowed: 0.1 is 10 %, and the default. A peer that got slower is no regression
    of coldctl's, and a sign that the machine did.
    """
    allowed = MAX_REGRESSION if max_regression is None else max_regression
    peers = {contender.name for contender in contenders if contender.kind == "peer"}
    return [
        _judged(way, ratio_of_medians(list(now.values()), list(before.values())), allowed, way[0] in peers)
        for way in _ways(runs, contenders)
        if len(now := seconds_by_round(runs, *way)) >= LEAST_ROUNDS
        and len(before := baseline.seconds_by_round(way)) >= LEAST_ROUNDS
    ]


def unjudged(baseline: Baseline, runs: Sequence[BenchRun], contenders: Sequence[Contender]) -> list[str]:
    """A note of the ways that are on one side only, and one for each of those with too few rounds to judge."""
    ours, theirs = _ways(runs, contenders), baseline.ways()
    lists = (
        ("not in the baseline", [way for way in ours if way not in theirs]),
        ("in the baseline only", [way for way in theirs if way not in ours]),
    )
    notes = [f"{where}: {'; '.join(map(_called, ways))}" for where, ways in lists if ways]
    for way in (way for way in ours if way in theirs):
        now, before = len(seconds_by_round(runs, *way)), len(baseline.seconds_by_round(way))
        if min(now, before) < LEAST_ROUNDS:
            counts = f"{now} here and {before} in the baseline"
            notes.append(
                f"{_called(way)} is not judged by the baseline: it takes {LEAST_ROUNDS} that loaded, not {counts}"
            )
    return notes


def other_machine(baseline: Baseline, host: HostFacts) -> list[str]:
    """A note of what the baseline's machine was, and this one is not."""
    before = baseline.host
    facts = [
        ("CPU", before.cpu, host.cpu),
        ("CPUs", before.cpus, host.cpus),
        ("kernel", before.kernel, host.kernel),
        ("virtual", before.virtual, host.virtual),
        ("filesystem", before.filesystem, host.filesystem),
        ("block device", before.block_device, host.block_device),
        *((name, before.versions[name], host.versions[name]) for name in before.versions if name in host.versions),
    ]
    if before.device and host.device:
        facts.append(("driver", before.device.driver, host.device.driver))
    changed = [f"{name} {then or 'none'} there, {now or 'none'} here" for name, then, now in facts if then != now]
    return [f"the baseline was not measured on the same: {'; '.join(changed)}"] if changed else []


def other_content(baseline: Baseline, runs: Sequence[BenchRun]) -> list[str]:
    """A note where loads brought other bytes then: as many of them, of a checkpoint that was trained on, say."""
    then = {run.content_sum for run in baseline.runs if run.error is None and run.content_sum}
    now = {run.content_sum for run in runs if run.error is None and run.content_sum}
    told = "the baseline is of a checkpoint with as many bytes in as many tensors, and other content"
    return [told] if then and now and not then & now else []


def _judged(way: Way, ratio: Ratio, max_regression: float, is_peer: bool) -> Regression:
    allowed, most = format_ratio(max_regression), 1 + max_regression
    slower = ratio.low > most
    if slower:
        whose = ", of a peer: this fails nothing" if is_peer else ""
        reason = f"even the lower bound is over the {allowed} that are allowed{whose}"
    elif ratio.median > most:
        reason = f"its median is over the {allowed} that are allowed, but the spread does not bear it out"
    elif ratio.low > 1:
        reason = f"slower, within the {allowed} that are allowed"
    else:
        reason = "faster" if ratio.high < 1 else "not apart from the baseline"
    return Regression(*way, ratio.median, ratio.low, ratio.high, slower and not is_peer, reason)


def _ways(runs: Sequence[BenchRun], contenders: Sequence[Contender]) -> list[Way]:
    """Those that were run here."""
    run = {(each.contender, each.cache) for each in runs}
    ways = ((contender.name, cache) for cache in cache_states(runs) for contender in contenders)
    return [way for way in ways if way in run]


def _called(way: Way) -> str:
    name, cache = way
    return f"{name} ({cache})"
