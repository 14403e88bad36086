"""coldctl's own load in a child of `bench`: the task as the loader's options, the report as the child's outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coldctl.jobs.bench.task import Outcome, Task
from coldctl.loader.device.protocol import Device
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.opened import open as open_checkpoint
from coldctl.results.load import Span, Stage

_LANES = {1: False, 4: True}
"""Whether there are lanes, by the streams that copy."""


class OwnLoad:
    """Opening the checkpoint counts as part of its plan: a load begins with the path, as a peer's does."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def load(self, device: str | Device) -> Mapping[str, Any]:
        """All tensors, by name. Raises what `coldctl.open` and `load` do."""
        begun_seconds = time.perf_counter()
        checkpoint = open_checkpoint(self._task.path)
        self._opening_seconds = time.perf_counter() - begun_seconds
        options = options_of(self._task)
        if self._task.first_layers is None:
            self._loaded: Loaded = checkpoint.load(device, **options)
        else:
            self._loaded = checkpoint.load(device, first_layers=self._task.first_layers, **options).wait()
        return self._loaded

    def described(self, outcome: Outcome) -> Outcome:
        """`outcome` with what the loader reports, which counts from when the checkpoint was open."""
        report, opening_seconds = self._loaded.report, self._opening_seconds
        first_layers_seconds = report.first_layers_seconds
        opening = Span("plan", "plan", 0.0, opening_seconds, 0)
        return replace(
            outcome,
            mode=report.mode,
            stages=tuple(sorted((*outcome.stages, *_with_opening(report.stages, opening_seconds)), key=_start)),
            first_layers_seconds=None if first_layers_seconds is None else first_layers_seconds + opening_seconds,
            attention_ready_seconds=tuple(each + opening_seconds for each in report.attention_ready_seconds),
            reason=report.reason,
            reader_streams=report.streams,
            direct_bytes=report.direct_bytes,
            ring=report.ring,
            copies=report.copies,
            notes=report.notes,
            spans=(*outcome.spans, opening, *_later(self._loaded.spans, opening_seconds)) if self._task.spans else (),
        )


def options_of(task: Task) -> dict[str, Any]:
    """The options of `load` that the task stands for: those that are the loader's defaults are left out."""
    on_host, own_allocation = task.device == "cpu", task.mode in ("map", "per-tensor")
    options = {
        "alloc": task.mode if on_host and own_allocation else None,
        "mode": None if on_host and own_allocation else task.mode,
        "readers": task.streams if on_host else None,
        "lanes": None if on_host or task.streams is None else _LANES[task.streams],
        "chunk_bytes": task.chunk_bytes,
        "order": task.order,
        "verify": task.verify,
    }
    return {name: value for name, value in options.items() if value is not None}


def _with_opening(stages: tuple[Stage, ...], opening_seconds: float) -> tuple[Stage, ...]:
    """The stages, from the opening on; the plan, which a load always has, begins with it."""
    return tuple(
        replace(each, start_seconds=0.0, seconds=each.seconds + opening_seconds)
        if each.name == "plan"
        else replace(each, start_seconds=each.start_seconds + opening_seconds)
        for each in stages
    )


def _start(stage: Stage) -> float:
    return stage.start_seconds


def _later(spans: tuple[Span, ...], seconds: float) -> tuple[Span, ...]:
    return tuple(replace(each, start_seconds=each.start_seconds + seconds) for each in spans)
