"""transformers on what fp8 writes: raw, compressed-tensors and, on a CPU, deepseek load with the logits of the decoded
weights, and a checkpoint of coldctl's own convention is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import coldctl
from coldctl.jobs.fp8 import Fp8Options, convert_fp8
from tests.fp8 import BLOCK_FP8, EMBED, HEAD

NAMED = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
IDS = torch.arange(0, 300, 7)[None]


def write_llama(
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    *,
    tied: bool = False,
    hidden_size: int = 64,
    vocab_size: int = 300,
) -> Path:
    """A tiny random Llama, whose embedding has the spread of a real one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab_size,
        tie_word_embeddings=tied,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == NAMED[dtype]
    return folder


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(IDS).logits
    return logits


def decoded_reference(source: Path, target: Path, dtype: torch.dtype) -> Any:
    """The source's model with the weights that coldctl's own reader decodes from the target."""
    model, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True)
    assert not any(report.values())
    loaded = coldctl.open(str(target)).load()
    names = dict(zip(NAMED, ("BF16", "F16", "F32"), strict=True))
    decode = coldctl.Dequantise(names[dtype])
    for name in (EMBED, HEAD):
        if name in loaded:
            weight = coldctl.transformed(loaded, name, decode)
            model.get_parameter(name).data.copy_(weight.to(dtype))
    return model


def load(folder: Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", NAMED)
@pytest.mark.parametrize("tied", [False, True])
def test_raw_loads_with_the_logits_of_its_values(tmp_path: Path, dtype: torch.dtype, tied: bool, fmt: Any) -> None:
    source = write_llama(tmp_path / "source", dtype, tied=tied)
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "raw", fmt, max_error=0.1))
    model = load(tmp_path / "target")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert torch.equal(logits_of(model), logits_of(decoded_reference(source, tmp_path / "target", dtype)))


@pytest.mark.parametrize("dtype", NAMED)
@pytest.mark.parametrize("tensors", [None, "embed_tokens", "lm_head"])
def test_compressed_tensors_loads_with_the_logits_of_the_decoded_weights(
    tmp_path: Path, dtype: torch.dtype, tensors: str | None
) -> None:
    source = write_llama(tmp_path / "source", dtype)
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "compressed-tensors", tensors=tensors))
    model = load(tmp_path / "target")
    if tensors != "lm_head":
        assert model.get_parameter(EMBED).dtype == torch.float8_e4m3fn
    found, wanted = logits_of(model), logits_of(decoded_reference(source, tmp_path / "target", dtype))
    assert torch.equal(found, wanted)
    assert not torch.equal(found, logits_of(load(source)))


def test_compressed_tensors_loads_without_the_head_too(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "compressed-tensors", tensors="embed_tokens"))
    model = AutoModel.from_pretrained(tmp_path / "target")
    with torch.no_grad():
        hidden = model(IDS).last_hidden_state
        wanted = decoded_reference(source, tmp_path / "target", torch.bfloat16).model(IDS).last_hidden_state
    assert torch.equal(hidden, wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, transformers leaves FP8 as it is")
def test_deepseek_is_decoded_where_there_is_no_gpu(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", hidden_size=128, vocab_size=384)
    path = source / "config.json"
    said = path.read_text()
    path.write_text(json.dumps({**json.loads(said), "quantization_config": BLOCK_FP8}))
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "deepseek"))
    path.write_text(said)
    model = load(tmp_path / "target")
    assert torch.equal(logits_of(model), logits_of(decoded_reference(source, tmp_path / "target", torch.bfloat16)))


@pytest.mark.parametrize("tied", [False, True])
def test_coldctls_own_convention_is_refused(tmp_path: Path, tied: bool) -> None:
    source = write_llama(tmp_path / "source", tied=tied)
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))
    for reader in (AutoModelForCausalLM, AutoModel, LlamaForCausalLM):
        with pytest.raises(TypeError):
            reader.from_pretrained(tmp_path / "target")


def test_a_method_by_a_name_that_transformers_does_not_know_would_load_wrong(tmp_path: Path) -> None:
    # Why the method stands in a list: were it text, this is what would become of the checkpoint.
    source = write_llama(tmp_path / "source")
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))
    path = tmp_path / "target" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["quant_method"] = config["quantization_config"]["quant_method"][0]
    path.write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    wanted = logits_of(load(source))
    assert (logits_of(model) - wanted).norm() > 10 * wanted.norm()
