"""One more load by coldctl's leading way in each cache state, watched, after the rounds and kept apart from their runs:
what every thread did when, and the page cache before and after it, cell by cell. Watching takes time from a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.afterwards import noted
from coldctl.jobs.bench.contenders import task_of
from coldctl.jobs.bench.rounds import Rounds
from coldctl.jobs.residency import measure_all
from coldctl.results.bench import BenchRun, CacheState, Contender, ResidencyMap, Timeline
from coldctl.results.bench_runs import cache_states, leading

CELLS_A_FILE = 64
MOST_CELLS = 512


def timelines(
    rounds: Rounds, contenders: Sequence[Contender], runs: Sequence[BenchRun], notes: list[str]
) -> Iterator[tuple[Timeline, ResidencyMap]]:
    """For each cache state of `runs` a timeline, and the residency around its load; none where nothing loaded, and the
    reason in `notes` instead where this one load fails. Raises StoppedError."""
    by_name = {contender.name: contender for contender in contenders}
    for cache in cache_states(runs):
        if name := leading(contenders, runs, cache):
            with noted(f"no timeline of {name} ({cache})", notes):
                yield _timeline_of(rounds, by_name[name], cache)


def _timeline_of(rounds: Rounds, contender: Contender, cache: CacheState) -> tuple[Timeline, ResidencyMap]:
    """Raises EnvironmentLacksError with the reason for a load that fails."""
    if lacks := rounds.prepare(cache).lacks:
        raise EnvironmentLacksError(f"not {cache}: {lacks}")
    before = cells_of(rounds.files)
    ran = rounds.runner.run(task_of(contender, rounds.options, rounds.files, spans=True))
    after = cells_of(rounds.files)
    outcome = ran.outcome
    if outcome.seconds is None:
        raise EnvironmentLacksError(outcome.error or "it was not measured")
    timeline = Timeline(
        contender=contender.name,
        cache=cache,
        seconds=outcome.seconds,
        loaded_seconds=outcome.loaded_seconds,
        first_layers_seconds=outcome.first_layers_seconds,
        spans=outcome.spans,
        device_samples=ran.device_samples,
    )
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
