"""Checkpoints with embeddings for the tests of fp8, and what FP8 makes of them, by ml_dtypes and numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.tiny import Made, Tensors, made, write_shard, write_sharded

DTYPES: dict[str, Any] = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
FP8: dict[str, tuple[Any, float]] = {
    "F8_E4M3": (ml_dtypes.float8_e4m3fn, 448.0),
    "F8_E5M2": (ml_dtypes.float8_e5m2, 57344.0),
}

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UNTIED = {"model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": False}
BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

Floats = NDArray[np.float32]


def some_rows(rows: int, columns: int, *, seed: int = 0, std: float = 0.05) -> Floats:
    return np.random.default_rng(seed).normal(0, std, (rows, columns)).astype(np.float32)


def tensor(values: NDArray[Any], dtype: str = "BF16") -> Made:
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN
        return Made(dtype, values.shape, values.astype(DTYPES[dtype]).tobytes())


def values_of(stored: Made) -> Floats:
    """A tensor's values in float32."""
    kind = DTYPES.get(stored.dtype) or FP8[stored.dtype][0]
    with np.errstate(invalid="ignore"):
        return np.frombuffer(stored.data, dtype=kind).reshape(stored.shape).astype(np.float32)


def encoded(values: Floats, scales: Floats | None = None, fp8: str = "F8_E4M3") -> bytes:
    """Quotients in float32, clamped, rounded once: ml_dtypes would make NaN of what is too large."""
    kind, most = FP8[fp8]
    quotients = values if scales is None else values / scales
    with np.errstate(invalid="ignore"):
        return np.clip(quotients, -most, most).astype(kind).tobytes()


def a_model(embed: Made, head: Made | None) -> list[Tensors]:
    """Two shards of a model with layers around these."""
    first = {"model.layers.0.mlp.up_proj.weight": made("BF16", 8, 16), EMBED: embed}
    second = {"model.layers.0.input_layernorm.weight": made("BF16", 16), "model.norm.weight": made("BF16", 16)}
    return [first, second if head is None else {**second, HEAD: head}]


def write_model(
    folder: Path,
    embed: Made,
    head: Made | None = None,
    *,
    config: Mapping[str, Any] | None = UNTIED,
    sharded: bool = True,
) -> Path:
    """`a_model`, and its config.json."""
    shards = a_model(embed, head)
    if sharded:
        write_sharded(folder, shards, {"format": "pt"})
    else:
        write_shard(folder / "model.safetensors", {**shards[0], **shards[1]}, {"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
