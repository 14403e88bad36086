"""One load in this process, and what came of it. A load that fails is an outcome too, with the reason in `error`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from coldctl.errors import ColdctlError
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.child.clock import Clock
from coldctl.jobs.bench.child.content import Tensor, content_sum
from coldctl.jobs.bench.child.own import OwnLoad
from coldctl.jobs.bench.child.target import open_target
from coldctl.jobs.bench.task import Outcome, Task
from coldctl.loader.device.cuda_errors import first_line
from coldctl.loader.host.memory import rss_anon_bytes
from coldctl.results.bench import HostMemory
from coldctl.results.load import Span, Stage


def outcome_of(task: Task) -> Outcome:
    """Load in this process, and say what came of it. Of the tensors nothing is kept."""
    try:
        return _outcome(task)
    except Exception as error:
        return Outcome(error=_in_one_line(error))


class Load(Protocol):
    """One way to load, with all imported that it takes."""

    def load(self, device: str) -> Mapping[str, Tensor]:
        """All tensors, by name. Copies to a device may still be under way."""

    def described(self, outcome: Outcome) -> Outcome:
        """`outcome` with what the loader itself says of its load."""


class PeerLoad:
    """A load by one of the peers, of which nothing is known but when it returned."""

    def __init__(self, peer: str, task: Task) -> None:
        self._load = peers.imported(peer)
        self._files = peers.files_read(peer, task.files)

    def load(self, device: str) -> Mapping[str, Tensor]:
        self._loaded = self._load(self._files, device)
        return self._loaded.tensors

    def described(self, outcome: Outcome) -> Outcome:
        return outcome


def _outcome(task: Task) -> Outcome:
    clock = Clock()
    load = _imported(task, clock)
    target = open_target(task.device, task.memory_fraction, clock)
    gc.collect()  # what the imports left over is no loader's to look through
    before_anon_bytes = rss_anon_bytes()

    clock.zero()
    tensors = load.load(target.device)
    loaded_seconds = clock.seconds
    target.arrive(tensors, clock)
    seconds, cpu_seconds = clock.seconds, clock.cpu_seconds

    peak_anon_bytes = max(before_anon_bytes, rss_anon_bytes())
    nbytes = sum(each.nbytes for each in tensors.values())
    stages = clock.stages(nbytes)
    outcome = Outcome(
        seconds=seconds,
        loaded_seconds=loaded_seconds,
        cpu_seconds=cpu_seconds,
        bytes=nbytes,
        tensors=len(tensors),
        stages=stages,
        host_memory=HostMemory(peak_anon_bytes, before_anon_bytes),
        spans=tuple(map(_span, stages)) if task.spans else (),
    )
    return load.described(target.described(outcome, tensors))


def _imported(task: Task, clock: Clock) -> Load:
    """The load, its imports on the clock. Where torch cannot be imported tensors are numpy's, or others say why not."""
    with suppress(ImportError, OSError):
        with clock.timed("import_torch"):
            import torch
        content_sum({"": torch.zeros(1)})  # a first call takes longer
    if task.peer is None:
        return OwnLoad(task)
    with clock.timed("import_peer"):
        return PeerLoad(task.peer, task)


def _span(stage: Stage) -> Span:
    return Span(stage.name, stage.name, stage.start_seconds, stage.seconds, stage.bytes)


def _in_one_line(error: Exception) -> str:
    """What went wrong, as text that JSON can hold: names of files may have bytes that are no UTF-8."""
    if isinstance(error, ColdctlError):
        text = " ".join(error.message.splitlines())
    else:
        text = f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    return text.encode("utf-8", "backslashreplace").decode()
