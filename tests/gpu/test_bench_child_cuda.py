"""The child of bench on a GPU: by every way the same bytes, on the device, with its memory; each in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.options import PEERS
from coldctl.jobs.bench.task import Outcome, Task
from tests.bench_content import total_of_folder
from tests.cli.process import run_python
from tests.tiny import made, read_folder, write_shard

MIB = 1 << 20
INSTALLED = [name for name in PEERS if peers.installed(name) and name != "tensorizer"]

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tensors = {"model.embed_tokens.weight": made("BF16", 4001, 1023), "odd": made("U8", 4097), "last": made("F32", 3)}
    for layer in range(2):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = made("BF16", 1024, 1024, seed=layer)
    write_shard(folder / "model.safetensors", tensors)
    return folder


def child(model: Path, **changes: Any) -> Outcome:
    task = {
        "path": str(model),
        "files": (str(model / "model.safetensors"),),
        "device": "cuda",
        "peer": None,
        "mode": None,
        "streams": None,
        "chunk_bytes": None,
        "order": None,
        "first_layers": None,
        "verify": False,
        "memory_fraction": None,
        "spans": False,
    }
    document = msgspec.json.encode(Task(**(task | changes))).decode()
    ended = run_python("-m", "coldctl.jobs.bench.child", input=document)
    assert ended.returncode == 0, ended.stderr
    return msgspec.json.decode(ended.stdout, type=Outcome)


def assert_brought(outcome: Outcome, model: Path) -> None:
    stored = [tensor.data for tensor in read_folder(model).values()]
    assert outcome.error is None
    assert (outcome.tensors, outcome.bytes) == (len(stored), sum(map(len, stored)))
    assert outcome.content_sum == f"{total_of_folder(model):016x}"


@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "mapped", "per-tensor"])
def test_every_mode_brings_all_bytes_to_the_device(model: Path, mode: str) -> None:
    outcome = child(model, mode=mode, streams=4 if mode == "ring" else None)
    assert_brought(outcome, model)
    stages = {stage.name: stage for stage in outcome.stages}
    assert stages["import_torch"].start_seconds < stages["cuda_context"].start_seconds < 0
    assert "touch" not in stages
    assert outcome.device_memory is not None
    assert outcome.bytes <= outcome.device_memory.allocated_bytes <= outcome.device_memory.allocated_peak_bytes
    assert outcome.copies is None or outcome.copies.streams == (4 if mode == "ring" else 1)


@pytest.mark.parametrize("peer", INSTALLED)
def test_an_installed_peer_brings_all_bytes_to_the_device(model: Path, peer: str) -> None:
    outcome = child(model, peer=peer)
    assert_brought(outcome, model)
    assert outcome.device_memory is not None


def test_gds_brings_all_bytes_or_says_what_is_missing(model: Path) -> None:
    outcome = child(model, mode="gds")
    if outcome.error is None:
        assert_brought(outcome, model)
    else:
        assert "gds" in outcome.error.lower()


def test_a_load_that_its_share_of_the_memory_does_not_hold_is_an_outcome(model: Path) -> None:
    outcome = child(model, mode="ring", memory_fraction=1e-6)
    assert outcome.error is not None
    assert "memory" in outcome.error
    assert outcome.device_memory is None


def test_first_layers_come_before_the_rest(model: Path) -> None:
    outcome = child(model, mode="ring", first_layers=1, chunk_bytes=MIB)
    assert_brought(outcome, model)
    assert outcome.first_layers_seconds is not None
    assert outcome.loaded_seconds is not None
    assert 0 < outcome.first_layers_seconds < outcome.loaded_seconds
