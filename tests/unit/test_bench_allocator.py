"""bench: what a child is told of its allocator is what torch understands (torch itself reads it here)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coldctl.errors import UsageError
from coldctl.jobs.bench.processes.allocator import allocator_environment

MIB = 1 << 20
READ = "import torch; print(torch._C._accelerator_getAllocatorSettings())"


def understood(added: dict[str, str], before: dict[str, str]) -> str:
    """The settings that torch, without a GPU too, has taken from its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    command = [sys.executable, "-c", READ]
    ran = subprocess.run(command, env={**environment, **before, **added}, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def settings_of(added: dict[str, str]) -> str:
    assert set(added) == {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
    assert len(set(added.values())) == 1
    return added["PYTORCH_ALLOC_CONF"]


def test_nothing_is_set_when_nothing_is_asked() -> None:
    assert allocator_environment(None, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}) == {}


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:100"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:100"},
        {"PYTORCH_CUDA_ALLOC_CONF": ""},
    ],
)
def test_torch_takes_the_size_whichever_variable_was_set(before: dict[str, str]) -> None:
    assert understood(allocator_environment(512 * MIB, before), before) == "max_split_size_mb:512"


def test_torch_stops_at_a_size_below_the_least() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        understood({"PYTORCH_ALLOC_CONF": "max_split_size_mb:19"}, {})
    assert "max_split_size_mb too small, must be >= 20" in caught.value.stderr
    assert understood(allocator_environment(20 * MIB, {}), {}) == "max_split_size_mb:20"


@pytest.mark.parametrize(
    ("nbytes", "mib"), [(20 * MIB, 20), (21 * MIB - 1, 20), (512_000_000, 488), (1 << 40, 1 << 20)]
)
def test_a_part_of_a_mib_is_cut_off(nbytes: int, mib: int) -> None:
    assert settings_of(allocator_environment(nbytes, {})) == f"max_split_size_mb:{mib}"


@pytest.mark.parametrize("nbytes", [0, 1, 20 * MIB - 1, 20_000_000])
def test_a_size_that_torch_does_not_take_is_refused(nbytes: int) -> None:
    with pytest.raises(UsageError, match=f"{nbytes} bytes is too small") as caught:
        allocator_environment(nbytes, {})
    assert "20MiB" in str(caught.value.hint)


def test_other_settings_stay_and_ours_replaces_all_of_its_name() -> None:
    before = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, roundup_power2_divisions:[256:1, 512:2,>:8],"
        ",garbage_collection_threshold : 0.8,max_split_size_mb:128,"
    }
    assert settings_of(allocator_environment(256 * MIB, before)) == (
        "max_split_size_mb:256,roundup_power2_divisions:[256:1,512:2,>:8],garbage_collection_threshold:0.8"
    )


def test_the_settings_that_are_kept_are_those_that_torch_would_have_read() -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.5", "PYTORCH_ALLOC_CONF": "backend:native"}
    assert understood({}, both) == "garbage_collection_threshold:0.5"
    assert settings_of(allocator_environment(32 * MIB, both)) == (
        "garbage_collection_threshold:0.5,max_split_size_mb:32"
    )


@pytest.mark.parametrize(
    "setting", ["backend:cudaMallocAsync", "expandable_segments:True", " backend : cudaMallocAsync"]
)
def test_what_makes_torch_ignore_the_size_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="ignores a maximum split size") as caught:
        allocator_environment(64 * MIB, {"PYTORCH_ALLOC_CONF": f"garbage_collection_threshold:0.5,{setting}"})
    assert setting.strip().partition(" ")[0].partition(":")[0] in str(caught.value.hint)


@pytest.mark.parametrize("setting", ["backend:native", "expandable_segments:False"])
def test_their_harmless_values_are_kept(setting: str) -> None:
    kept = settings_of(allocator_environment(64 * MIB, {"PYTORCH_ALLOC_CONF": setting}))
    assert kept == f"{setting},max_split_size_mb:64"


def test_larger_segments_raise_the_least_size() -> None:
    larger = {"PYTORCH_ALLOC_CONF": "large_segment_size_mb:64"}
    with pytest.raises(UsageError) as caught:
        allocator_environment(63 * MIB, larger)
    assert "64MiB" in str(caught.value.hint)
    assert (
        understood(allocator_environment(64 * MIB, larger), larger) == "large_segment_size_mb:64,max_split_size_mb:64"
    )
