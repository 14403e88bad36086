"""bench: load a checkpoint again and again, each time in a fresh process, and say where the seconds went."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coldctl.errors import EnvironmentLacksError
from coldctl.events import NULL, Events
from coldctl.jobs.bench.afterwards import noted
from coldctl.jobs.bench.brought import amounts_of
from coldctl.jobs.bench.checks import check, check_for_host
from coldctl.jobs.bench.contenders import contenders
from coldctl.jobs.bench.destination import Destination, find_destination
from coldctl.jobs.bench.limits.bus import measure_bus
from coldctl.jobs.bench.limits.measured import better, deadline, measure_limits
from coldctl.jobs.bench.machine.host_facts import host_facts
from coldctl.jobs.bench.options import BenchOptions
from coldctl.jobs.bench.processes.allocator import allocator_environment
from coldctl.jobs.bench.processes.runner import Runner
from coldctl.jobs.bench.rounds import Rounds
from coldctl.jobs.bench.timelines import timelines
from coldctl.jobs.bench.verdict import judge
from coldctl.jobs.bench.verdict.baseline import Baseline, read_baseline, require_comparable
from coldctl.jobs.bench.verdict.regressions import other_content, other_machine, regressions, unjudged
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.results.bench import BenchResult, BenchRun, Contender, HostFacts, Limits
from coldctl.results.bench_runs import cache_states, leading, median_run


def bench(options: BenchOptions, events: Events = NULL) -> BenchResult:
    """Measure the limits of the machine, run every contender in rounds, measure the limits again, and judge.

    The checkpoint is put out of the page cache for cold loads, and read into it for warm ones. A run that fails is a
    run with its reason in the result, and what fails after the rounds a note. Raises UsageError, what opening the
    checkpoint and the baseline raises, EnvironmentLacksError (exit code 5) for a GPU that is not to be had and for
    files that cannot be brought into any of the cache states, and StoppedError; no process is left behind.
    """
    begun_seconds = time.perf_counter()
    check(options)
    baseline = read_baseline(options.baseline) if options.baseline else None
    checkpoint = open_checkpoint(options.path)
    destination = find_destination(options.device, events)
    options = replace(options, device=destination.device, caches=tuple(dict.fromkeys(options.caches)))
    if destination.bus is None:
        check_for_host(options, destination.note)
    environment = {**os.environ, **allocator_environment(options.max_split_size_bytes, os.environ)}
    ways, missing = contenders(options)
    uuid = destination.bus.uuid if destination.bus else None
    host = host_facts(checkpoint.shards[0].path, uuid)
    tensors, nbytes = amounts_of(checkpoint)[0]
    if baseline:
        _require_comparable(baseline, options, host, ways, nbytes, tensors)
    notes = _told(filter(None, [destination.note, *missing]), events)

    before = measure_limits(checkpoint, destination.bus, options.caches, events)
    rounds = Rounds(options, checkpoint, Runner(deadline(checkpoint.bytes, before), events, uuid, environment), events)
    runs = rounds.run_all(ways)
    notes += _told(_left_out(rounds), events)
    failed: list[str] = []
    apart = list(timelines(rounds, ways, runs, failed))
    limits = before
    with noted("the limits could not be measured again", failed):
        limits = better(before, _limits_again(checkpoint, destination, options, events))
    notes += _told(failed, events)

    bests = judge.bests(ways, runs)
    best, best_reason = judge.best_of_all(bests)
    middle = _median_of_best(ways, runs)
    notes += judge.uncompared(ways, runs)
    if baseline:
        notes += other_machine(baseline, host) + other_content(baseline, runs) + unjudged(baseline, runs, ways)
    return BenchResult(
        path=options.path,
        device=options.device,
        bytes=nbytes,
        tensors=tensors,
        files=len(checkpoint.shards),
        file_bytes=checkpoint.bytes,
        rounds=options.rounds,
        verify=options.verify,
        first_layers=options.first_layers,
        memory_fraction=options.memory_fraction,
        max_split_size_bytes=options.max_split_size_bytes,
        host=host,
        contenders=ways,
        limits=limits,
        runs=runs,
        summaries=judge.summaries(ways, runs, limits, device=options.device, cpus=host.cpus),
        best=best,
        best_reason=best_reason,
        bests=bests,
        comparisons=judge.comparisons(ways, runs),
        first_layers_seconds=middle.first_layers_seconds if middle else None,
        attention_ready_seconds=list(middle.attention_ready_seconds) if middle else [],
        timelines=[timeline for timeline, _ in apart],
        residency=[residency for _, residency in apart],
        regressions=regressions(baseline, runs, ways, options.max_regression) if baseline else None,
        notes=notes,
        seconds=time.perf_counter() - begun_seconds,
    )


def _told(notes: Iterable[str], events: Events) -> list[str]:
    """The notes, which whoever waits hears at once."""
    listed = list(notes)
    for note in listed:
        events.note(note)
    return listed


def _require_comparable(
    baseline: Baseline, options: BenchOptions, host: HostFacts, ways: Sequence[Contender], nbytes: int, tensors: int
) -> None:
    require_comparable(
        baseline,
        options,
        gpu=host.device.name if host.device else None,
        nbytes=nbytes,
        tensors=tensors,
        ways=[(way.name, cache) for way in ways for cache in options.caches],
    )


def _left_out(rounds: Rounds) -> list[str]:
    """A note for each cache state that could not be had. Raises EnvironmentLacksError when none could."""
    notes = [f"no {cache} loads: {why}" for cache, why in rounds.left_out.items()]
    if len(notes) == len(rounds.options.caches):
        raise EnvironmentLacksError(
            f"the checkpoint can be brought into no cache state that was asked for: {'; '.join(notes)}",
            hint="free memory, end what maps its files, run as their owner, or copy it to a disk",
        )
    return notes


def _limits_again(checkpoint: Checkpoint, destination: Destination, options: BenchOptions, events: Events) -> Limits:
    bus = measure_bus(options.device, events) if destination.bus else None
    return measure_limits(checkpoint, bus, options.caches, events)


def _median_of_best(ways: Sequence[Contender], runs: Sequence[BenchRun]) -> BenchRun | None:
    """The median run of coldctl's fastest way in the first cache state in which any loaded."""
    for cache in cache_states(runs):
        if best := leading(ways, runs, cache):
            return median_run(runs, best, cache)
    return None
