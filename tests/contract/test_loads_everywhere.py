"""What repack writes loads unchanged: in safetensors for numpy and torch, and as a model in transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors import safe_open
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file as load_torch
from transformers import AutoModelForCausalLM

from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.format.layout import ALIGNS, Align
from scripts.make_checkpoint import make_checkpoint
from tests.tiny import made, read_folder, without_places, write_shard

MIB = 1 << 20
SHAPES = ["llama", "qwen", "gemma"]
FILLER = "_coldctl_pad."


def repacked(tmp_path: Path, shape: str, align: Align, **options: Any) -> tuple[Path, Path]:
    """A synthetic sharded checkpoint and what repack made of it."""
    source, target = tmp_path / "source", tmp_path / "target"
    make_checkpoint(source, shape=shape, size_bytes=4 * MIB, shard_bytes=2 * MIB)
    repack(RepackOptions(str(source), str(target), align=align, **options))
    return source, target


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.numpy().tobytes()


def all_in_torch(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Every tensor of a folder as the torch loader gives it, fillers left out."""
    return {
        name: bits(tensor)
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_torch(path).items()
        if not name.startswith(FILLER)
    }


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_loads_every_tensor_bit_for_bit(tmp_path: Path, shape: str, align: Align) -> None:
    source, target = repacked(tmp_path, shape, align)
    assert all_in_torch(target) == all_in_torch(source)
    assert without_places(read_folder(target)) == without_places(read_folder(source))


@pytest.mark.parametrize("align", ALIGNS)
def test_numpy_loads_every_tensor_bit_for_bit(tmp_path: Path, align: Align) -> None:
    dtypes = ("BOOL", "U8", "F16", "F32", "I64")
    tensors = {f"{dtype}.{n}": made(dtype, n, 3) for dtype in dtypes for n in (0, 1, 5, 2048)}
    for name in [name for name in tensors if name.startswith("BOOL")]:
        tensors[name] = tensors[name]._replace(data=bytes(byte & 1 for byte in tensors[name].data))
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target"), align=align))
    found = load_numpy(tmp_path / "target" / "model.safetensors")
    expected = load_numpy(tmp_path / "source" / "model.safetensors")
    assert {name for name in found if not name.startswith(FILLER)} == set(tensors)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes() == tensors[name].data


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3", "BF16", "C64", "BOOL"])
def test_dtypes_that_numpy_lacks_load_in_torch(tmp_path: Path, dtype: str, align: Align) -> None:
    tensors = {"odd": made("U8", 3), "t": made(dtype, 6, 4)}
    if dtype == "BOOL":
        tensors["t"] = tensors["t"]._replace(data=bytes(byte & 1 for byte in tensors["t"].data))
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target"), align=align))
    assert all_in_torch(tmp_path / "target") == all_in_torch(tmp_path / "source")
    with safe_open(tmp_path / "target" / "model.safetensors", "pt") as file:
        assert file.get_slice("t").get_dtype() == dtype


@pytest.mark.parametrize("align", ALIGNS)
def test_mapped_tensors_lie_on_pages(tmp_path: Path, align: Align) -> None:
    _, target = repacked(tmp_path, "llama", align)
    for path in target.glob("*.safetensors"):
        for name, tensor in load_torch(path).items():
            size = tensor.numel() * tensor.element_size()
            whole = size % 4096 == 0 or align == "every"
            if not name.startswith(FILLER) and whole:
                assert tensor.data_ptr() % 4096 == 0, name


def load_model(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    return {name: bits(tensor) for name, tensor in model.state_dict().items()}, report


@pytest.mark.parametrize(
    ("shape", "align", "options"),
    [
        *[(shape, align, {}) for shape in SHAPES for align in ALIGNS],
        ("llama", "page", {"order": "layers", "shard_size_bytes": MIB}),
        ("llama", "every", {"order": "attention-first", "shard_size_bytes": 1 << 30}),
    ],
)
def test_transformers_loads_the_same_model(tmp_path: Path, shape: str, align: Align, options: dict[str, Any]) -> None:
    source, target = repacked(tmp_path, shape, align, **options)
    expected, _ = load_model(source)
    found, report = load_model(target)
    assert found == expected
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
