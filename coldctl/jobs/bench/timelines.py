"""One more run of coldctl's best way in each cache state, kept apart from the others: with what every thread did when,
and with the page cache before and after it, cell by cell. Taking account of that takes time from a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from coldctl.jobs.bench.contenders import task_of
from coldctl.jobs.bench.judge import cache_states, seconds_by_round
from coldctl.jobs.bench.rounds import Rounds
from coldctl.jobs.residency import measure_all
from coldctl.results.bench import BenchRun, CacheState, Contender, ResidencyMap, Timeline

CELLS_A_FILE = 64
MOST_CELLS = 512


def timelines(
    rounds: Rounds, contenders: Sequence[Contender], runs: Sequence[BenchRun]
) -> Iterator[tuple[Timeline, ResidencyMap]]:
    """For each cache state of `runs` a timeline, of the round after the last, and the residency around it; none where
    nothing loaded, or this one run fails. Raises StoppedError."""
    for cache in cache_states(runs):
        best = leading(contenders, runs, cache)
        if best and (found := _timeline_of(rounds, best, cache)):
            yield found


def leading(contenders: Sequence[Contender], runs: Sequence[BenchRun], cache: CacheState) -> Contender | None:
    """coldctl's own way with the least median of seconds in a cache state; None when none loaded."""
    medians = {}
    for contender in contenders:
        seconds = seconds_by_round(runs, contender.name, cache)
        if contender.kind == "coldctl" and seconds:
            medians[contender] = median(seconds.values())
    return min(medians, key=lambda contender: medians[contender], default=None)


def _timeline_of(rounds: Rounds, contender: Contender, cache: CacheState) -> tuple[Timeline, ResidencyMap] | None:
    if rounds.prepare(cache).lacks:
        return None
    before = cells_of(rounds.files)
    outcome = rounds.runner.run(task_of(contender, rounds.options, rounds.files, spans=True)).outcome
    after = cells_of(rounds.files)
    if outcome.error is not None or outcome.seconds is None:
        return None
    timeline = Timeline(contender.name, cache, rounds.options.rounds, outcome.seconds, outcome.spans)
    return timeline, ResidencyMap(contender.name, cache, before, after)


def cells_of(files: Sequence[str]) -> tuple[float, ...] | None:
    """The share of each cell that is in the page cache, file after file, in at most 512 cells. None where the kernel
    does not tell. Of more files than that, neighbours share a cell."""
    cells_a_file = max(1, min(CELLS_A_FILE, MOST_CELLS // len(files)))
    measured = measure_all({path: path for path in files}, cells_a_file)
    cells: list[float] = []
    for found in measured.values():
        if found.cells is None:
            return None
        cells += found.cells
    return tuple(_joined(cells))


def _joined(cells: Sequence[float]) -> Iterator[float]:
    count = min(len(cells), MOST_CELLS)
    for number in range(count):
        yield fmean(cells[number * len(cells) // count : (number + 1) * len(cells) // count])
