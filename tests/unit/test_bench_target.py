"""A load to a GPU in a child of bench: what is done before, when the load is over, and what is no load to a device.

There is no GPU here. What only its driver can do is noted instead of done, and tensors only say that they are there;
all else is the real child. (tests/gpu/test_bench_child_cuda.py runs it on a real one.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coldctl.jobs.bench.child import peers, target
from coldctl.jobs.bench.child.outcome import outcome_of
from coldctl.jobs.bench.task import Outcome
from coldctl.results.bench import DeviceMemory
from tests import bench_results
from tests.bench_tasks import task

MEMORY = bench_results.device_memory()
STEP_SECONDS = 0.02


class OnGpu(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
    """A tensor of the CPU that says it is on a GPU."""

    device = torch.device("cuda:3")


def on_gpu(value: int) -> torch.Tensor:
    return torch.full((8,), value, dtype=torch.uint8).as_subclass(OnGpu)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the driver, in order; every step takes a moment."""
    steps: list[str] = []

    def note(step: str) -> None:
        time.sleep(STEP_SECONDS)
        steps.append(step)

    def open_cuda(name: str) -> SimpleNamespace:
        note(f"open {name}")
        return SimpleNamespace(name="cuda:3")

    def measured(device: str) -> Callable[[], DeviceMemory]:
        note(f"measure {device}")

        def end() -> DeviceMemory:
            note("measured")
            return MEMORY

        return end

    monkeypatch.setattr(target, "open_cuda", open_cuda)
    monkeypatch.setattr(target, "measured", measured)
    monkeypatch.setattr(target, "_use", lambda device: note(f"use {device}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: note(f"synchronize {device}"))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, index: note(f"limit {index} to {share}")
    )
    return steps


def load_of(
    tensors: Mapping[str, torch.Tensor], done: list[str], monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> Outcome:
    """The outcome of a load by a peer that brings `tensors`."""

    def load(files: Sequence[str], device: str) -> peers.Loaded:
        done.append(f"load {len(files)} to {device}")
        return peers.Loaded(tensors)

    monkeypatch.setitem(peers.BY_NAME, "torch", peers.Peer("torch", lambda: load))
    return outcome_of(task(device="cuda", peer="torch", mode=None, **changes))


def test_a_load_begins_on_a_device_in_use_and_ends_when_it_has_done_all(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"a": on_gpu(1), "b": on_gpu(2)}
    outcome = load_of(tensors, done, monkeypatch, memory_fraction=0.5)
    assert (outcome.error, outcome.tensors, outcome.bytes) == (None, 2, 16)
    assert done == [
        "open cuda",
        "use cuda:3",
        "limit 3 to 0.5",
        "measure cuda:3",
        "load 1 to cuda:3",
        "synchronize cuda:3",
        "measured",
    ]
    assert outcome.device_memory == MEMORY
    assert outcome.seconds is not None
    assert outcome.loaded_seconds is not None
    assert outcome.seconds - outcome.loaded_seconds >= STEP_SECONDS  # the device was waited for on the clock


def test_the_context_is_a_stage_of_its_own_before_the_load(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = load_of({"a": on_gpu(1)}, done, monkeypatch)
    stages = {stage.name: stage for stage in outcome.stages}
    assert list(stages) == ["import_torch", "import_peer", "cuda_context"]
    context = stages["cuda_context"]
    assert context.start_seconds + context.seconds < 0
    assert context.seconds >= 2 * STEP_SECONDS  # opening the device, and using it
    assert not any(step.startswith("limit") for step in done)


def test_tensors_that_a_loader_left_on_the_host_are_no_load_to_a_device(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"there": on_gpu(1), "left": torch.zeros(8), "also left": torch.zeros(8)}
    outcome = load_of(tensors, done, monkeypatch)
    assert outcome.error == "2 of 3 tensors were brought to host memory, and not to the device"
    assert (outcome.seconds, outcome.device_memory) == (None, None)
