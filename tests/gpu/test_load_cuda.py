"""Loading onto a CUDA device: every way gives the bytes of the files, and leaves the device as it was."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import coldctl
from coldctl.errors import EnvironmentLacksError, FaultError, OutOfMemoryError
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.device.protocol import Device
from tests.tiny import made, write_shard

MIB = 1 << 20


@pytest.fixture
def device(cuda: Device) -> Iterator[Device]:
    gc.collect()
    before_bytes = torch.cuda.memory_allocated(0)
    yield cuda
    gc.collect()
    assert torch.cuda.memory_allocated(0) <= before_bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repacked, so that a manifest lies beside it: two layers of separate projections, odd sizes, FP8."""
    folder = tmp_path_factory.mktemp("model")
    tensors = {"model.embed_tokens.weight": made("BF16", 4000, 1024), "odd": made("U8", 4097), "empty": made("F32", 0)}
    for layer in range(2):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = made("BF16", 1024, 1024, seed=layer)
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = made("F8_E4M3", 4096, 1024, seed=layer)
    write_shard(folder / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(folder / "source"), str(folder / "model")), Events())
    return folder / "model"


def expect_equal(loaded: Any, model: Path) -> None:
    expected = load_file(model / "model.safetensors")
    assert set(loaded) == set(expected)
    for name, tensor in expected.items():
        assert loaded[name].device == torch.device("cuda", 0)
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        if tensor.numel():
            assert torch.equal(loaded[name].cpu().view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "mapped", "per-tensor"])
@pytest.mark.parametrize("check", [{}, {"verify": True}, {"exact": True}])
def test_every_mode_gives_the_bytes_of_the_file(device: Device, model: Path, mode: Any, check: Any) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, mode=mode, chunk_bytes=MIB, ring_bytes=4 * MIB, **check)
        expect_equal(loaded, model)
        assert loaded.report.mode == mode or mode == "auto"
    del loaded


def test_gds_gives_the_bytes_of_the_file_or_says_what_is_missing(device: Device, model: Path) -> None:
    lacking = None
    try:
        device.gds()
    except EnvironmentLacksError as error:
        lacking = error.message
    with coldctl.open(model) as checkpoint:
        if lacking is None:
            loaded = checkpoint.load(device, mode="gds")
            expect_equal(loaded, model)
            assert loaded.report.gds_bytes > 0
            del loaded
        else:
            with pytest.raises(EnvironmentLacksError, match=re.escape(lacking)):
                checkpoint.load(device, mode="gds")


def test_lanes_streams_and_the_first_layers(device: Device, model: Path) -> None:
    with coldctl.open(model) as checkpoint:
        lanes = checkpoint.load(device, lanes=True, order="layers")
        expect_equal(lanes, model)
        assert lanes.report.copies is not None
        assert lanes.report.copies.streams == 4
        assert len(lanes.report.attention_ready_seconds) == 2
        expect_equal(dict(checkpoint.stream(device)), model)
        expect_equal(checkpoint.load(device, first_layers=1).wait(60), model)
    del lanes


def test_the_shares_of_a_device_make_the_whole(device: Device, model: Path) -> None:
    with coldctl.open(model) as checkpoint:
        halves = checkpoint.load(devices=[device, device], split="tp")
    expected = load_file(model / "model.safetensors")
    for name, dim in (("q_proj", 0), ("o_proj", 1)):
        name = f"model.layers.1.self_attn.{name}.weight"
        whole = torch.cat([half[name] for half in halves], dim=dim).cpu()
        assert torch.equal(whole.view(torch.uint8), expected[name].view(torch.uint8))
    halves.clear()


def test_a_damaged_file_is_found_on_the_device(device: Device, model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(3 * MIB)
        byte = file.read(1)[0]
        file.seek(3 * MIB)
        file.write(bytes([byte ^ 16]))
    with coldctl.open(tmp_path) as checkpoint, pytest.raises(FaultError) as caught:
        checkpoint.load(device, verify=True)
    assert caught.value.rule == "digest.mismatch"
    del caught


def test_more_than_the_device_has_is_an_error_before_anything_is_read(device: Device, tmp_path: Path) -> None:
    _, total_bytes = torch.cuda.mem_get_info(0)
    header = b'{"large":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (2 * total_bytes, 2 * total_bytes)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + 2 * total_bytes)
    with coldctl.open(tmp_path) as checkpoint, pytest.raises(OutOfMemoryError, match="stage allocate") as caught:
        checkpoint.load(device)
    del caught
