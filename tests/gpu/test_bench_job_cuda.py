"""bench as a whole onto a GPU: what it gave, held and did is in the result, and its settings were obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coldctl.jobs.bench import BenchOptions, bench
from coldctl.loader.device.protocol import Device
from coldctl.results.bench import BenchResult
from tests.bench_content import total_of_folder
from tests.loads import layer
from tests.tiny import read_folder, write_shard

MIB = 1 << 20


@pytest.fixture
def result(cuda: Device, tmp_path: Path) -> BenchResult:
    write_shard(tmp_path / "model.safetensors", {**layer(0), **layer(1)})
    options = BenchOptions(
        str(tmp_path),
        device=cuda.name,
        modes=("ring",),
        streams=(4,),
        caches=("warm",),
        compare=("safetensors",),
        rounds=1,
        memory_fraction=0.5,
        max_split_size_bytes=64 * MIB,
    )
    return bench(options)


def test_a_gpu_is_measured_watched_and_loaded_to(result: BenchResult, cuda: Device, tmp_path: Path) -> None:
    assert result.device == cuda.name
    assert result.host.device is not None
    assert result.host.device.name == torch.cuda.get_device_name(cuda.name)

    limits = result.limits
    for rate in (limits.h2d_1_bytes_per_second, limits.h2d_2_bytes_per_second, limits.h2d_4_bytes_per_second):
        assert rate is not None
        assert 1e8 < rate < 1e12
    assert not any(name.startswith("h2d") for name in limits.unmeasured)

    stored = read_folder(tmp_path).values()
    assert [run.contender for run in result.runs] == ["ring, 4 streams", "safetensors"]
    for run in result.runs:
        assert run.error is None
        assert (run.tensors, run.bytes) == (len(stored), sum(len(tensor.data) for tensor in stored))
        assert run.content_sum == f"{total_of_folder(tmp_path):016x}"
        assert run.device_memory is not None
        assert "max_split_size=67108864" in run.device_memory.allocator_settings
        assert run.device_memory.allocated_bytes >= run.bytes
        assert run.device_samples
        assert not any("could not be sampled" in note for note in run.notes)
        assert "cuda_context" in {stage.name for stage in run.stages}

    own = result.runs[0]
    assert own.copies is not None
    assert (own.copies.streams, own.copies.bytes) == (4, own.bytes)
    h2d = next(stage for stage in own.stages if stage.name == "h2d")
    assert h2d.seconds == pytest.approx(own.copies.seconds)
    assert own.seconds is not None
    assert 0 < h2d.start_seconds < h2d.start_seconds + h2d.seconds <= own.seconds
    assert result.timelines[0].device_samples
    assert {"copy q", "copy k", "copy v", "copy rest"} <= {span.track for span in result.timelines[0].spans}
