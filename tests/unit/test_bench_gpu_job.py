"""bench onto a GPU, wired up: what reaches each child, and what of its answer reaches the result.

There is no GPU here: what the bus gave is made up, children are scripts, and the sampler has one sample. All between
them is the real job. (tests/gpu/test_bench_job_cuda.py runs it on a real one.)
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pytest

from coldctl.jobs.bench import BenchOptions, bench, job
from coldctl.jobs.bench.destination import Destination
from coldctl.jobs.bench.limits.bus import Bus
from coldctl.jobs.bench.processes import runner
from coldctl.jobs.bench.processes.runner import Runner
from coldctl.report.json import result_document
from coldctl.results.bench import BenchResult
from tests import bench_results
from tests.tiny import made, write_shard

MIB = 1 << 20
UUID = "12345678-aaaa-bbbb-cccc-0123456789ab"
MEMORY = bench_results.device_memory()
SAMPLE = bench_results.device_sample(0.25)

CHILD = """
import json, os, sys
task = json.load(sys.stdin)
loaded = {"bytes": 5000, "tensors": 1, "content_sum": "aa", "seconds": float(sys.argv[1])}
told = [task["device"], os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), os.environ.get("PYTORCH_ALLOC_CONF", "")]
print(json.dumps(loaded | {"device_memory": json.loads(sys.argv[2]), "notes": told}))
"""


class OneSample:
    """A DeviceSampler that has one sample of each device, by its UUID."""

    reason: str | None = None

    def __init__(self, uuid: str) -> None:
        self.samples = (SAMPLE,) if uuid == UUID else ()

    def __enter__(self) -> OneSample:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """There is no thread."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda:0, whose bus gives other rates before the rounds than after them."""
    before = Bus("cuda:0", UUID, {1: 50e9, 2: 20e9, 4: 30e9}, None)
    after = Bus("cuda:0", UUID, {1: 40e9, 2: 60e9, 4: 30e9}, None)
    monkeypatch.setattr(job, "find_destination", lambda asked, events: Destination("cuda:0", before, None))  # noqa: ARG005
    monkeypatch.setattr(job, "measure_bus", lambda device, events: after)  # noqa: ARG005
    monkeypatch.setattr(runner, "DeviceSampler", OneSample)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def benched(folder: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 2.0, **wishes: Any) -> BenchResult:
    """The result of loads that take so long, each."""
    write_shard(folder / "model.safetensors", {"a": made("U8", 5000)})
    command = (sys.executable, "-c", CHILD, str(seconds), msgspec.json.encode(MEMORY).decode())
    monkeypatch.setattr(job, "Runner", partial(Runner, command=command))
    asked: dict[str, Any] = {"device": "auto", "modes": ("ring",), "caches": ("warm",), "rounds": 1}
    return bench(BenchOptions(str(folder), **(asked | wishes)))


def test_each_child_has_the_allocator_and_the_device_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:4")
    (run,) = benched(tmp_path, monkeypatch, max_split_size_bytes=64 * MIB).runs
    allocator = "roundup_power2_divisions:4,max_split_size_mb:64"
    assert run.notes == ("cuda:0", allocator, allocator)
    (plain,) = benched(tmp_path, monkeypatch).runs
    assert plain.notes == ("cuda:0", "", "roundup_power2_divisions:4")


def test_the_device_is_sampled_and_its_memory_kept_in_every_run_and_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = benched(tmp_path, monkeypatch, rounds=2)
    assert result.device == "cuda:0"
    assert [(run.error, run.device_memory, run.device_samples) for run in result.runs] == [
        (None, MEMORY, (SAMPLE,))
    ] * 2
    assert [timeline.device_samples for timeline in result.timelines] == [(SAMPLE,)]


def test_limits_are_the_better_of_those_before_and_after_the_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = benched(tmp_path, monkeypatch).limits
    h2d = (limits.h2d_1_bytes_per_second, limits.h2d_2_bytes_per_second, limits.h2d_4_bytes_per_second)
    assert h2d == (50e9, 60e9, 30e9)


def test_what_is_a_regression_is_for_whoever_asks_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third slower: too much by default, and not where half is allowed."""
    former = tmp_path / "former.json"
    former.write_text(result_document("bench", benched(tmp_path, monkeypatch, rounds=5), ok=True))
    found = [
        benched(
            tmp_path, monkeypatch, seconds=8 / 3, rounds=5, baseline=str(former), max_regression=allowed
        ).regressions
        for allowed in (None, 0.5)
    ]
    assert [[(each.contender, each.regressed) for each in judged or ()] for judged in found] == [
        [("ring", True)],
        [("ring", False)],
    ]
