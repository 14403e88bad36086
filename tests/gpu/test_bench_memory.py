"""bench: device_memory, allocator and device_samples on a GPU: the real allocator and the real driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from coldctl.jobs.bench.machine.device_samples import DeviceSampler, device_uuid
from coldctl.jobs.bench.processes.allocator import allocator_environment
from coldctl.loader.device.protocol import Device

MIB = 1 << 20

# Each runs in a process of its own, since an allocator keeps what earlier tests did to it.
FRAGMENT = """
import json, torch
from dataclasses import asdict
from coldctl.jobs.bench.child.device_memory import measured
end = measured("cuda:0")
tensors = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda:0") for _ in range(16)]
del tensors[::2]
print(json.dumps(asdict(end())))
"""
LIMIT = """
import torch
from coldctl.jobs.bench.child.device_memory import limit_memory
limit_memory("cuda", 0.01)
total_bytes = torch.cuda.mem_get_info(0)[1]
torch.empty(total_bytes // 200, dtype=torch.uint8, device="cuda:0")
try:
    torch.empty(total_bytes // 50, dtype=torch.uint8, device="cuda:0")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""


def ran(program: str, added: Mapping[str, str]) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**plain, **added}, capture_output=True, text=True, check=True).stdout


def memory(added: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran(FRAGMENT, added))
    return found


@pytest.mark.usefixtures("cuda")
def test_the_map_agrees_with_the_allocators_counters() -> None:
    found = memory({})
    blocks = [(len(each["blocks"]), block) for each in found["segments"] for block in each["blocks"]]
    split_bytes = sum(block["size_bytes"] for count, block in blocks if count > 1 and block["state"] == "inactive")
    assert found["allocated_bytes"] == sum(block["size_bytes"] for _, block in blocks if block["state"] == "allocated")
    assert found["allocated_bytes"] == 8 * 8 * MIB
    assert found["allocated_peak_bytes"] == 16 * 8 * MIB
    assert found["reserved_bytes"] == sum(each["size_bytes"] for each in found["segments"])
    assert found["inactive_split_bytes"] == split_bytes > 0
    assert found["fragmentation_share"] == split_bytes / found["reserved_bytes"]
    assert found["fragmented"] is (found["fragmentation_share"] >= 0.15)
    assert 0 < found["driver_free_after_bytes"] < found["driver_total_bytes"]
    assert found["allocator_settings"].startswith("backend=native, ")


@pytest.mark.usefixtures("cuda")
def test_the_allocator_runs_with_the_split_size_that_was_asked_for() -> None:
    assert "max_split_size=67108864" in memory(allocator_environment(64 * MIB, {}))["allocator_settings"]
    assert "max_split_size=67108864" not in memory({})["allocator_settings"]


@pytest.mark.usefixtures("cuda")
def test_an_allocator_without_a_map_is_measured_all_the_same() -> None:
    found = memory({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert (found["segments"], found["allocator_settings"]) == ([], "backend=cudaMallocAsync")
    assert found["allocated_bytes"] >= 8 * 8 * MIB


@pytest.mark.usefixtures("cuda")
def test_more_than_the_fraction_is_refused() -> None:
    assert ran(LIMIT, {}).strip() == "refused"


def test_the_driver_is_asked_about_the_device_that_torch_uses(cuda: Device) -> None:
    uuid = device_uuid(cuda.name)
    held = cuda.allocate(256 * MIB)
    with DeviceSampler(uuid, every_seconds=0.05) as sampler:
        time.sleep(0.5)
    del held
    assert sampler.reason is None
    samples = sampler.samples
    assert len(samples) >= 2
    assert all(each.used_bytes is None or each.used_bytes >= 256 * MIB for each in samples)
    assert all(each.power_watts is None or 0 < each.power_watts < 3000 for each in samples)
