"""Rounds: every contender once in each cache state, in the reverse order each time, and every run kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coldctl.events import Events
from coldctl.jobs.bench.cache_state import Prepared, prepare, residency_of
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.contenders import task_of
from coldctl.jobs.bench.options import BenchOptions
from coldctl.jobs.bench.processes.runner import Ran, Runner
from coldctl.jobs.bench.task import Outcome
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.results.bench import BenchRun, CacheState, Contender


class Rounds:
    """What all runs of a benchmark have in common. `left_out` has the cache states that cannot be had here, and why."""

    def __init__(self, options: BenchOptions, checkpoint: Checkpoint, runner: Runner, events: Events) -> None:
        self.options = options
        self.runner = runner
        self.files = [shard.path for shard in checkpoint.shards]
        self.left_out: dict[CacheState, str] = {}
        self._events = events

    def run_all(self, contenders: Sequence[Contender]) -> list[BenchRun]:
        """All runs in the order in which they were made. Those that brought other bytes than coldctl are failed ones.

        A cache state that the checkpoint's files cannot be brought into is left out. Raises StoppedError.
        """
        self._tell(0)
        runs = []
        for cache in self.options.caches:
            if lacks := self.prepare(cache).lacks:
                self.left_out[cache] = lacks
                continue
            runs += [self._run(contender, cache, 0) for contender in contenders]
        had = [cache for cache in self.options.caches if cache not in self.left_out]
        turns = [(contender, cache) for cache in had for contender in contenders]
        for number in range(1, self.options.rounds if turns else 1):
            self._tell(number)
            in_order = reversed(turns) if number % 2 else turns
            runs += [self._run(contender, cache, number) for contender, cache in in_order]
        return held_to_reference(runs, contenders)

    def prepare(self, cache: CacheState) -> Prepared:
        """Bring the checkpoint's files into a cache state, or say why that cannot be."""
        return prepare(cache, self.files, self._events)

    def _tell(self, number: int) -> None:
        """A note a round: most of a run is no load, but a process that starts, so there is no rate to be told."""
        self._events.note(f"round {number + 1} of {self.options.rounds}")

    def _run(self, contender: Contender, cache: CacheState, number: int) -> BenchRun:
        read = self.files if contender.kind == "coldctl" else peers.files_read(contender.name, self.files)
        before = prepare(cache, read, self._events) if read else Prepared(None, None)
        if before.lacks:
            ran = Ran(Outcome(error=f"not {cache}: {before.lacks}"), ())
        else:
            ran = self.runner.run(task_of(contender, self.options, self.files, spans=False))
        after = residency_of(read).resident_bytes if read else None
        return _bench_run(contender, cache, number, ran, before.resident_bytes, after)


def held_to_reference(runs: Sequence[BenchRun], contenders: Sequence[Contender]) -> list[BenchRun]:
    """`runs`, those failed that brought other bytes than the first of coldctl's own that succeeded."""
    own = {contender.name for contender in contenders if contender.kind == "coldctl"}
    succeeded = (run for run in runs if run.error is None and run.contender in own)
    reference = next((run.content_sum for run in succeeded), None)
    return [_brought_other_bytes(run) if _differs(run, reference) else run for run in runs]


def _differs(run: BenchRun, reference: str | None) -> bool:
    return run.error is None and reference is not None and run.content_sum != reference


def _brought_other_bytes(run: BenchRun) -> BenchRun:
    """Its times are none of a load of this checkpoint."""
    error = f"brought other bytes: their sum is {run.content_sum}, and not that of coldctl's loads"
    return replace(run, error=error, seconds=None, loaded_seconds=None, bytes_per_second=None)


def _bench_run(
    contender: Contender, cache: CacheState, number: int, ran: Ran, before_bytes: int | None, after_bytes: int | None
) -> BenchRun:
    outcome = ran.outcome
    return BenchRun(
        contender=contender.name,
        cache=cache,
        round=number,
        mode=outcome.mode,
        error=outcome.error,
        seconds=outcome.seconds,
        loaded_seconds=outcome.loaded_seconds,
        cpu_seconds=outcome.cpu_seconds,
        bytes=outcome.bytes,
        bytes_per_second=outcome.bytes / outcome.seconds if outcome.seconds else None,
        tensors=outcome.tensors,
        content_sum=outcome.content_sum,
        resident_before_bytes=before_bytes,
        resident_after_bytes=after_bytes,
        stages=outcome.stages,
        first_layers_seconds=outcome.first_layers_seconds,
        attention_ready_seconds=outcome.attention_ready_seconds,
        reason=outcome.reason,
        reader_streams=outcome.reader_streams,
        direct_bytes=outcome.direct_bytes,
        ring=outcome.ring,
        copies=outcome.copies,
        notes=outcome.notes,
        host_memory=outcome.host_memory,
        device_memory=outcome.device_memory,
        device_samples=ran.device_samples,
    )
