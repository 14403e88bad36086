"""Rounds: every contender once in each cache state, in the reverse order each time, and every run kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from coldctl.errors import EnvironmentLacksError, InputError
from coldctl.events import Events
from coldctl.jobs.bench.brought import amounts_of, held_to_reference
from coldctl.jobs.bench.cache_state import Prepared, prepare, residency_of
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.contenders import task_of
from coldctl.jobs.bench.options import BenchOptions
from coldctl.jobs.bench.pace import Pace
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
        self._amounts = amounts_of(checkpoint)
        self.left_out: dict[CacheState, str] = {}
        self._events = events

    def run_all(self, contenders: Sequence[Contender]) -> list[BenchRun]:
        """All runs in the order in which they were made. Those that brought other bytes than coldctl are failed ones.

        A cache state that the checkpoint's files cannot be brought into is left out, and a peer that cannot load them
        fails once in each. Raises StoppedError.
        """
        able = [contender for contender in contenders if not self._refusal(contender)]
        pace = Pace(self.options.rounds, len(able) * len(self.options.caches), self._events)
        pace.round(0)
        runs = []
        for cache in self.options.caches:
            if lacks := self.prepare(cache).lacks:
                self.left_out[cache] = lacks
                continue
            runs += [self._run(contender, cache, 0, pace) for contender in contenders]
        had = [cache for cache in self.options.caches if cache not in self.left_out]
        turns = [(contender, cache) for cache in had for contender in able]
        for number in range(1, self.options.rounds if turns else 1):
            pace.round(number)
            in_order = reversed(turns) if number % 2 else turns
            runs += [self._run(contender, cache, number, pace) for contender, cache in in_order]
        return held_to_reference(runs, contenders, self._amounts)

    def prepare(self, cache: CacheState) -> Prepared:
        """Bring the checkpoint's files into a cache state, or say why that cannot be."""
        return prepare(cache, self.files, self._events)

    def _run(self, contender: Contender, cache: CacheState, number: int, pace: Pace) -> BenchRun:
        if refusal := self._refusal(contender):
            return _bench_run(contender, cache, number, _failed(refusal), Prepared(None, None, None), None)
        run = self._loaded(contender, cache, number)
        pace.load()
        return run

    def _refusal(self, contender: Contender) -> str | None:
        own = contender.kind == "coldctl"
        return None if own else peers.refusal(contender.name, self.files, self.options.device)

    def _loaded(self, contender: Contender, cache: CacheState, number: int) -> BenchRun:
        read = self.files if contender.kind == "coldctl" else peers.files_read(contender.name, self.files)
        try:
            before = prepare(cache, read, self._events)
        except (InputError, EnvironmentLacksError) as error:  # the runs before it count all the same
            before = Prepared(None, None, error.message)
        if before.lacks:
            return _bench_run(contender, cache, number, _failed(f"not {cache}: {before.lacks}"), before, None)
        ran = self.runner.run(task_of(contender, self.options, self.files, spans=False))
        return _bench_run(contender, cache, number, ran, before, _resident_bytes(read))


def _resident_bytes(files: Sequence[str]) -> int | None:
    with suppress(InputError, EnvironmentLacksError, OSError):  # files may be gone by now
        return residency_of(files).resident_bytes
    return None


def _failed(error: str) -> Ran:
    return Ran(Outcome(error=error), ())


def _bench_run(
    contender: Contender, cache: CacheState, number: int, ran: Ran, before: Prepared, after_bytes: int | None
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
        resident_before_bytes=before.resident_bytes,
        resident_after_bytes=after_bytes,
        resident_bound_bytes=before.bound_bytes,
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
