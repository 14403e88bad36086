"""What is refused before a byte is read: results that an engine would load, and take for something else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from coldctl.errors import RefusedError
from coldctl.fp8 import model_config
from coldctl.fp8.conventions import Convention, Format
from coldctl.fp8.targets import Target
from coldctl.loader.format.checkpoint import Checkpoint

_QUANTISED_BY = ("hf_quant_config.json", "quant_config.json", "quantize_config.json", "quant_model_description.json")
"""Where ModelOpt, AWQ, GPTQ and ModelSlim say what they did: vLLM and SGLang look for them."""


def check(
    convention: Convention, fmt: Format, checkpoint: Checkpoint, config: Mapping[str, Any], targets: list[Target]
) -> None:
    """Raises RefusedError, with the reason, for what `convention` cannot say to all who read it."""
    if fmt not in convention.formats:
        raise RefusedError(
            f"{convention.name} knows no {fmt}", hint=f"use --format {convention.formats[0]}, or another --for"
        )
    _check_config_is_there(convention, checkpoint, config)
    _check_quantisation(convention, checkpoint, config, targets)
    if convention.name in ("raw", "compressed-tensors") and config and model_config.model_dtype(config) is None:
        raise RefusedError(
            "config.json names no dtype that weights are cast to: transformers would take FP8 for the model's",
            hint='add "dtype": "bfloat16", or whichever it is, to config.json',
        )
    if convention.name == "compressed-tensors":
        _check_modules(config, targets)


def _check_config_is_there(convention: Convention, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    if not config and os.path.lexists(os.path.join(checkpoint.root, model_config.NAME)):
        raise RefusedError(
            "config.json says nothing, or cannot be read as a JSON object, so nobody knows how this model is read",
            hint="use the config.json that the model came with",
        )
    if not convention.needs_config:
        return
    if checkpoint.single_file:
        raise RefusedError(
            f"{convention.name} needs a config.json that names the scales, and a single file has none with it",
            hint="name the folder, or use --for raw",
        )
    if not config:
        raise RefusedError(
            f"{convention.name} needs a config.json that names the scales, and the source has none",
            hint="add the model's config.json, or use --for raw",
        )


def _check_quantisation(
    convention: Convention, checkpoint: Checkpoint, config: Mapping[str, Any], targets: list[Target]
) -> None:
    quantised = model_config.quantisation(config)
    if convention.name == "deepseek":
        if quantised != config.get(model_config.KEY) or not model_config.is_block_fp8(quantised):
            raise RefusedError(
                "deepseek extends a checkpoint whose config.json has block FP8 already (quant_method fp8, E4M3,"
                " blocks of 128 x 128, scales in float32), and this one has not",
                hint="use --for raw, compressed-tensors or coldctl",
            )
        for target in targets:
            if (name := model_config.excluded(quantised, target)) is not None:
                raise RefusedError(
                    f"the quantization_config keeps {name} out of FP8: {target.name} would be read without its scale",
                    hint="choose others with --tensors",
                )
        return
    if quantised is not None:
        raise RefusedError(
            f"the source is quantised already: config.json has a quantization_config{_method(quantised)}",
            hint="quantise from the original checkpoint"
            + (", or use --for deepseek" if model_config.is_block_fp8(quantised) else ""),
        )
    for name in _QUANTISED_BY:
        if os.path.lexists(os.path.join(checkpoint.root, name)):
            raise RefusedError(
                f"the source is quantised already: it has a {name}", hint="quantise from the original checkpoint"
            )


def _check_modules(config: Mapping[str, Any], targets: list[Target]) -> None:
    if not model_config.is_untied(config):
        raise RefusedError(
            "config.json does not say that head and embedding are two weights (tie_word_embeddings is not false):"
            " with tied ones the head gets the FP8 numbers without their scales, and the first forward fails",
            hint='use --for raw, or add "tie_word_embeddings": false if they are not tied',
        )
    for target in targets:
        if target.module == target.name:
            raise RefusedError(
                f"tensor {target.name} is no weight of a module, which is what compressed-tensors names",
                hint="choose others with --tensors",
            )


def _method(quantised: Any) -> str:
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    return f" ({method})" if isinstance(method, str) else ""
