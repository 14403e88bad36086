"""One run: one load in a process of its own, and whatever became of it as an outcome."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import msgspec

from coldctl.events import Events
from coldctl.jobs.bench.machine.device_samples import DeviceSampler
from coldctl.jobs.bench.processes.host_memory import PeakSampler
from coldctl.jobs.bench.processes.process import Deadline, Ended, run_child
from coldctl.jobs.bench.task import Outcome, Task
from coldctl.results.bench import DeviceSample

COMMAND = (sys.executable, "-m", "coldctl.jobs.bench.child")


@dataclass(frozen=True, slots=True)
class Ran:
    outcome: Outcome
    device_samples: tuple[DeviceSample, ...]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks by `command`, each no longer than `deadline`, in an `environment` that has what steers torch's
    allocator. `device_uuid` names the GPU to be sampled meanwhile, and is null for the host."""

    deadline: Deadline
    events: Events
    device_uuid: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    command: Sequence[str] = COMMAND

    def run(self, task: Task) -> Ran:
        """A process that dies, hangs or says nothing that makes sense is an outcome with an error. Raises StoppedError
        and EnvironmentLacksError as `run_child` does."""
        memory = _Peak()
        with DeviceSampler(self.device_uuid) if self.device_uuid else nullcontext() as sampler:
            ended = run_child(
                self.command,
                document_of(task),
                self.deadline,
                self.events,
                environment=self.environment,
                watching=memory.watching,
            )
        outcome = outcome_of(ended)
        if outcome.host_memory:
            peak_bytes = max(outcome.host_memory.peak_anon_bytes, memory.bytes)
            outcome = replace(outcome, host_memory=replace(outcome.host_memory, peak_anon_bytes=peak_bytes))
        if sampler and sampler.reason and outcome.error is None:
            outcome = replace(outcome, notes=(*outcome.notes, f"the device could not be sampled: {sampler.reason}"))
        return Ran(outcome, sampler.samples if sampler else ())


def document_of(task: Task) -> bytes:
    """The task as JSON, ASCII alone: names of files may have bytes that are no UTF-8, which Python keeps as surrogates
    and msgspec does not write."""
    return json.dumps(msgspec.to_builtins(task)).encode()


def outcome_of(ended: Ended) -> Outcome:
    """What the child wrote. One that was ended by a signal is not believed, whatever it wrote before."""
    if not ended.document:
        return Outcome(error=f"its process {ended.died or 'ended without an answer'}")
    try:
        outcome = msgspec.json.decode(ended.document, type=Outcome)
    except msgspec.DecodeError as error:
        return Outcome(error=f"its process {ended.died or 'ended'}, and its answer makes no sense: {error}")
    if outcome.error is None and not outcome.seconds:
        return Outcome(error="its process ended without a measurement")
    return outcome


class _Peak:
    """The most anonymous memory of one child."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def watching(self, pid: int) -> Iterator[None]:
        sampler = PeakSampler(pid)
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()
            self.bytes = sampler.peak_anon_bytes
