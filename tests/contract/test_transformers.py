"""transformers loads what this project makes, with every tensor equal bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from scripts.make_checkpoint import make_checkpoint

MIB = 1 << 20


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's tensors by name, and what transformers has to say about names that it missed or did not expect."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    return model.state_dict(), report


@pytest.mark.parametrize("shape", ["llama", "qwen", "gemma"])
def test_synthetic_sharded_checkpoint_loads_unchanged(tmp_path: Path, shape: str) -> None:
    paths = make_checkpoint(tmp_path, shape=shape, size_bytes=4 * MIB, shard_bytes=2 * MIB)
    assert len(paths) > 1
    loaded, report = load(tmp_path)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    written = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    tied = json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    assert set(loaded) - set(written) == ({"lm_head.weight"} if tied else set())
    for name, tensor in written.items():
        assert loaded[name].dtype == torch.bfloat16
        assert torch.equal(loaded[name].view(torch.int16), tensor.view(torch.int16)), name
