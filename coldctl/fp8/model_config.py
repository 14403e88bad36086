"""What config.json says that decides whether FP8 weights would be read right, and what it gets to say."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from coldctl.errors import InputError
from coldctl.fp8.conventions import BLOCK, Convention, Format
from coldctl.fp8.targets import Target
from coldctl.fp8.weight import Weight

NAME = "config.json"
KEY = "quantization_config"
_KEYS = (KEY, "compression_config")
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def model_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype, by its name in safetensors, that readers cast weights to. None where it is left to them."""
    named = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(named.removeprefix("torch.")) if isinstance(named, str) else None


def is_untied(config: Mapping[str, Any]) -> bool:
    """Whether head and embedding are said to be two weights. Where nothing is said, it depends on the model's class."""
    said = [part["tie_word_embeddings"] for part in _parts(config) if "tie_word_embeddings" in part]
    return bool(said) and not any(said)


def quantisation(config: Mapping[str, Any]) -> Any:
    """The quantization_config, or compression_config, of the model or of a part of it. None where there is none."""
    found = (part[key] for part in _parts(config) for key in _KEYS if part.get(key))
    return next(found, None)


def is_block_fp8(quantised: Any) -> bool:
    """Whether a quantization_config is that of DeepSeek-V3: E4M3, a float32 scale for each 128 x 128 block."""
    return (
        isinstance(quantised, Mapping)
        and quantised.get("quant_method") == "fp8"
        and quantised.get("weight_block_size") == [BLOCK, BLOCK]
        and quantised.get("fmt", "e4m3") == "e4m3"
        and quantised.get("scale_fmt", "float") == "float"
    )


def excluded(quantised: Mapping[str, Any], target: Target) -> str | None:
    """What a block FP8 config lists that keeps `target` out of it; None where nothing does."""
    listed = [name for key in ("modules_to_not_convert", "ignored_layers") for name in quantised.get(key) or ()]
    return next((name for name in listed if isinstance(name, str) and name and name in target.module), None)


def edited(
    config: Mapping[str, Any], convention: Convention, fmt: Format, weights: list[Weight], modules: Collection[str]
) -> bytes | None:
    """The new config.json, with all that the old one says. None where the convention leaves it as it is.

    `modules` are all that have tensors. Raises InputError for an old one that is nested too deeply to be written.
    """
    if convention.name == "compressed-tensors":
        added = _compressed_tensors(weights, modules)
    elif convention.name == "coldctl":
        added = _own(fmt, weights)
    else:
        return None
    try:
        return json.dumps({**config, KEY: added}, indent=2).encode() + b"\n"
    except RecursionError as error:
        raise InputError(f"{NAME} is nested too deeply", hint="use the config.json that the model came with") from error


def targets_of(weights: list[Weight], modules: Collection[str]) -> list[str]:
    """compressed-tensors' names for the modules of `weights`: the end of each path that no other of `modules` has.

    A whole path would miss the module where a reader loads the model without its head, or inside of another one.
    Regular expressions are matched from the start of a name: compressed-tensors 0.20, utils/match.py, match_name.
    """
    chosen = {weight.target.module for weight in weights}
    others = set(modules) - chosen
    return [f"re:(.*[.])?{re.escape(end)}$" for end in sorted({_own_end(module, others) for module in chosen})]


def _own_end(module: str, others: Collection[str]) -> str:
    parts = module.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), module)


def _compressed_tensors(weights: list[Weight], modules: Collection[str]) -> dict[str, Any]:
    """compressed-tensors 0.20, quantization/quant_config.py and quant_args.py."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"targets": targets_of(weights, modules), "weights": scheme}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "input_activations": None, "output_activations": None}},
        "ignore": [],
        "kv_cache_scheme": None,
    }


def _own(fmt: Format, weights: list[Weight]) -> dict[str, Any]:
    """The method stands in a list: transformers 5.24 only warns of a text that it does not know, skips the scales and
    takes the codes for values. At a list it stops (quantizers/auto.py), and vLLM and SGLang do."""
    return {
        "quant_method": ["coldctl_fp8"],
        "fmt": fmt,
        "scales": {weight.name: weight.scale_name for weight in weights},
    }


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and those in it, such as text_config, at any depth."""
    parts = [config]
    while parts:
        part = parts.pop()
        yield part
        parts += [value for key, value in part.items() if isinstance(value, Mapping) and key not in _KEYS]
