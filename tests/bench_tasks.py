"""Tasks for the child process of a benchmark, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coldctl.jobs.bench.task import Task

_PLAIN = Task(
    path="model",
    files=("model/a",),
    device="cpu",
    peer=None,
    mode="auto",
    streams=None,
    chunk_bytes=None,
    order=None,
    first_layers=None,
    verify=False,
    memory_fraction=None,
    spans=False,
)


def task(**changes: Any) -> Task:
    """coldctl's own load into host memory, with the loader's defaults but for `changes`."""
    return replace(_PLAIN, **changes)
