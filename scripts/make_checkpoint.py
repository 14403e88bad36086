#!/usr/bin/env python3
"""Write a synthetic checkpoint with the names, shape proportions and config.json of a real model family.

    scripts/make_checkpoint.py /data/llama --shape llama --size 2GiB --shard-size 500MB

The data are pseudo-random and finite, and depend on the seed and on a tensor's place in the model, not on the shards.
Memory does not grow with the size: tensors are written block by block.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import UsageError
from coldctl.units import GIB, MIB, parse_size

BLOCK_BYTES = 4 * MIB
FP8_BLOCK = 128
HIDDEN_SIZES = (8192, 7168, 6144, 5120, 4096, 3072, 2048, 1536, 1024, 768, 512, 256, 128, 64)
DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
CONFIG_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# The safetensors library lays tensors out by dtype, widest first, then by name.
LAYOUT_RANK = {"F32": 0, "BF16": 1, "F16": 2, "F8_E4M3": 3}
WIDTH_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
# Random bits to keep and bits to set, so that every value is finite and of the size that weights, norms or scales have.
PATTERNS = {
    ("weight", "F32"): (0x80FFFFFF, 0x3C000000),
    ("weight", "BF16"): (0x80FF, 0x3C00),
    ("weight", "F16"): (0x87FF, 0x2000),
    ("weight", "F8_E4M3"): (0xBF, 0x00),
    ("norm", "F32"): (0x000FFFFF, 0x3F800000),
    ("norm", "BF16"): (0x000F, 0x3F80),
    ("norm", "F16"): (0x007F, 0x3C00),
    ("scale", "F32"): (0x007FFFFF, 0x39000000),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """`number` is the place in the model, from which its data follow; `kind` is weight, norm or scale."""

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTH_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Size:
    """What is free in a family once its proportions are set."""

    hidden: int
    layers: int
    vocab: int
    experts: int = 0


Entry = tuple[str, str, tuple[int, ...], str]
Model = tuple[dict[str, Any], Iterator[Entry]]


def head_width(hidden: int) -> int:
    return 128 if hidden >= 1024 else 64 if hidden >= 256 else 16


def common_config(architecture: str, model_type: str, size: Size, dtype: str, intermediate: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": size.hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": size.layers,
        "vocab_size": size.vocab,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "torch_dtype": CONFIG_DTYPES[dtype],
        "use_cache": True,
    }


def grouped_attention(prefix: str, dtype: str, hidden: int, heads: int, kv_heads: int, width: int) -> Iterator[Entry]:
    for name, rows, columns in (
        ("q_proj", heads * width, hidden),
        ("k_proj", kv_heads * width, hidden),
        ("v_proj", kv_heads * width, hidden),
        ("o_proj", hidden, heads * width),
    ):
        yield f"{prefix}.self_attn.{name}.weight", dtype, (rows, columns), "weight"


def gated_mlp(prefix: str, dtype: str, hidden: int, intermediate: int) -> Iterator[Entry]:
    yield f"{prefix}.gate_proj.weight", dtype, (intermediate, hidden), "weight"
    yield f"{prefix}.up_proj.weight", dtype, (intermediate, hidden), "weight"
    yield f"{prefix}.down_proj.weight", dtype, (hidden, intermediate), "weight"


def norms(prefix: str, dtype: str, hidden: int, names: Iterable[str], kind: str = "norm") -> Iterator[Entry]:
    for name in names:
        yield f"{prefix}.{name}.weight", dtype, (hidden,), kind


def llama(size: Size, dtype: str) -> Model:
    """Llama 3: every matrix and every norm is a whole number of pages once the model is as large as the real ones."""
    hidden, width = size.hidden, head_width(size.hidden)
    heads, intermediate = hidden // width, hidden * 7 // 2
    kv_heads = max(1, heads // 4)
    config = common_config("LlamaForCausalLM", "llama", size, dtype, intermediate) | {
        "attention_bias": False,
        "head_dim": width,
        "hidden_act": "silu",
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    }

    def entries() -> Iterator[Entry]:
        yield "model.embed_tokens.weight", dtype, (size.vocab, hidden), "weight"
        for layer in range(size.layers):
            prefix = f"model.layers.{layer}"
            yield from grouped_attention(prefix, dtype, hidden, heads, kv_heads, width)
            yield from gated_mlp(f"{prefix}.mlp", dtype, hidden, intermediate)
            yield from norms(prefix, dtype, hidden, ("input_layernorm", "post_attention_layernorm"))
        yield "model.norm.weight", dtype, (hidden,), "norm"
        yield "lm_head.weight", dtype, (size.vocab, hidden), "weight"

    return config, entries()


def qwen(size: Size, dtype: str) -> Model:
    """Qwen 3: as llama, with norms on queries and keys of 128 values, far below a page."""
    hidden, width = size.hidden, 128
    heads, intermediate = max(2, hidden // width), hidden * 3
    kv_heads = max(1, heads // 4)
    config = common_config("Qwen3ForCausalLM", "qwen3", size, dtype, intermediate) | {
        "attention_bias": False,
        "head_dim": width,
        "hidden_act": "silu",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    }

    def entries() -> Iterator[Entry]:
        yield "model.embed_tokens.weight", dtype, (size.vocab, hidden), "weight"
        for layer in range(size.layers):
            prefix = f"model.layers.{layer}"
            yield from grouped_attention(prefix, dtype, hidden, heads, kv_heads, width)
            yield from norms(f"{prefix}.self_attn", dtype, width, ("q_norm", "k_norm"))
            yield from gated_mlp(f"{prefix}.mlp", dtype, hidden, intermediate)
            yield from norms(prefix, dtype, hidden, ("input_layernorm", "post_attention_layernorm"))
        yield "model.norm.weight", dtype, (hidden,), "norm"
        yield "lm_head.weight", dtype, (size.vocab, hidden), "weight"

    return config, entries()


def gemma(size: Size, dtype: str) -> Model:
    """Gemma 2: embedding and head are one tensor, four norms a layer, and norm weights lie around 0 (1 + w is used)."""
    hidden, width = size.hidden, head_width(size.hidden) * 2
    heads, intermediate = max(2, hidden // width), hidden * 4
    kv_heads = heads // 2
    config = common_config("Gemma2ForCausalLM", "gemma2", size, dtype, intermediate) | {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": width,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "query_pre_attn_scalar": width,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    }
    layer_norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def entries() -> Iterator[Entry]:
        yield "model.embed_tokens.weight", dtype, (size.vocab, hidden), "weight"
        for layer in range(size.layers):
            prefix = f"model.layers.{layer}"
            yield from grouped_attention(prefix, dtype, hidden, heads, kv_heads, width)
            yield from gated_mlp(f"{prefix}.mlp", dtype, hidden, intermediate)
            yield from norms(prefix, dtype, hidden, layer_norms, kind="weight")
        yield "model.norm.weight", dtype, (hidden,), "weight"

    return config, entries()


def in_fp8(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Each matrix as FP8 with one F32 scale for 128 × 128 values, named as DeepSeek names it."""
    for name, _, (rows, columns), kind in entries:
        yield name, "F8_E4M3", (rows, columns), kind
        yield f"{name}_scale_inv", "F32", (math.ceil(rows / FP8_BLOCK), math.ceil(columns / FP8_BLOCK)), "scale"


def latent_attention(prefix: str, dtype: str, config: dict[str, Any]) -> Iterator[Entry]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    matrices = (
        ("q_a_proj", q_rank, hidden),
        ("q_b_proj", heads * (nope + rope), q_rank),
        ("kv_a_proj_with_mqa", kv_rank + rope, hidden),
        ("kv_b_proj", heads * (nope + value), kv_rank),
        ("o_proj", hidden, heads * value),
    )
    yield from in_fp8((f"{prefix}.{name}.weight", "", (rows, columns), "weight") for name, rows, columns in matrices)
    yield f"{prefix}.q_a_layernorm.weight", dtype, (q_rank,), "norm"
    yield f"{prefix}.kv_a_layernorm.weight", dtype, (kv_rank,), "norm"


def deepseek_moe(size: Size, dtype: str) -> Model:
    """DeepSeek V3: latent attention, a dense layer, then experts in FP8, each matrix with a small F32 scale tensor."""
    hidden, width = size.hidden, head_width(size.hidden)
    intermediate, expert_width = hidden * 5 // 2, max(32, hidden * 2 // 7 // 32 * 32)
    config = common_config("DeepseekV3ForCausalLM", "deepseek_v3", size, dtype, intermediate) | {
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "kv_lora_rank": max(32, hidden // 16),
        "moe_intermediate_size": expert_width,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": hidden // width,
        "num_experts_per_tok": min(8, size.experts),
        "num_key_value_heads": hidden // width,
        "q_lora_rank": max(32, hidden // 4),
        "qk_nope_head_dim": width,
        "qk_rope_head_dim": width // 2,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": width,
    }

    def mlp(prefix: str, inner: int) -> Iterator[Entry]:
        return in_fp8(gated_mlp(prefix, "", hidden, inner))

    def entries() -> Iterator[Entry]:
        yield "model.embed_tokens.weight", dtype, (size.vocab, hidden), "weight"
        yield "model.norm.weight", dtype, (hidden,), "norm"
        yield "lm_head.weight", dtype, (size.vocab, hidden), "weight"
        for layer in range(size.layers):
            prefix = f"model.layers.{layer}"
            yield from latent_attention(f"{prefix}.self_attn", dtype, config)
            yield from norms(prefix, dtype, hidden, ("input_layernorm", "post_attention_layernorm"))
            if layer == 0:
                yield from mlp(f"{prefix}.mlp", intermediate)
                continue
            yield f"{prefix}.mlp.gate.weight", dtype, (size.experts, hidden), "weight"
            yield f"{prefix}.mlp.gate.e_score_correction_bias", "F32", (size.experts,), "weight"
            yield from mlp(f"{prefix}.mlp.shared_experts", expert_width)
            for expert in range(size.experts):
                yield from mlp(f"{prefix}.mlp.experts.{expert}", expert_width)

    return config, entries()


SHAPES: dict[str, Callable[[Size, str], Model]] = {
    "llama": llama,
    "qwen": qwen,
    "gemma": gemma,
    "deepseek-moe": deepseek_moe,
}
# Rows of the embedding for each value of the hidden size, near the least that a model of the family has.
VOCAB_SHARE = {"llama": 8, "qwen": 20, "gemma": 48, "deepseek-moe": 8}


def tensors_of(shape: str, size: Size, dtype: str, count: int | None = None) -> list[Tensor]:
    """The model's tensors in its own order, cut after `count` of them."""
    _, entries = SHAPES[shape](size, dtype)
    numbered = (Tensor(number, *entry) for number, entry in enumerate(entries))
    return list(numbered) if count is None else [tensor for tensor, _ in zip(numbered, range(count), strict=False)]


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def layers_for_count(shape: str, hidden: int, dtype: str, count: int, experts: int) -> int:
    """The fewest layers with which the model has `count` tensors or more."""
    two, three = (len(tensors_of(shape, Size(hidden, layers, 64, experts), dtype)) for layers in (2, 3))
    return max(2, 2 + math.ceil((count - two) / (three - two)))


def fit(shape: str, wanted_bytes: int, dtype: str, count: int | None = None) -> Size:
    """The widest model of the family that fits into `wanted_bytes`, as deep as then fits; the embedding takes the rest.

    Raises UsageError when not even the narrowest one fits.
    """
    experts = 0 if shape != "deepseek-moe" else 256 if count or wanted_bytes >= GIB else 16

    def bytes_of(hidden: int, layers: int, vocab: int) -> int:
        return total_bytes(tensors_of(shape, Size(hidden, layers, vocab, experts), dtype, count))

    for hidden in HIDDEN_SIZES:
        vocab = hidden * VOCAB_SHARE[shape]
        layers = max(2, hidden // 128) if count is None else layers_for_count(shape, hidden, dtype, count, experts)
        spare = wanted_bytes - bytes_of(hidden, layers, vocab)
        if spare >= 0:
            break
    else:
        raise UsageError(
            f"{shape} does not fit into {wanted_bytes} bytes: the smallest is {wanted_bytes - spare} bytes"
        )
    if count is None:
        layer = bytes_of(hidden, layers + 1, vocab) - bytes_of(hidden, layers, vocab)
        layers, spare = layers + spare // layer, spare % layer
    row = (bytes_of(hidden, layers, vocab + 64) - bytes_of(hidden, layers, vocab)) // 64
    return Size(hidden, layers, vocab + spare // row // 64 * 64, experts)


def into_shards(tensors: Iterable[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    """Tensors in model order, a new shard wherever the next one would not fit; none is ever split."""
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def in_file_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: (LAYOUT_RANK[tensor.dtype], tensor.name))


def header_of(tensors: Iterable[Tensor]) -> bytes:
    """Length and JSON of a file with `tensors` in this order, padded to 8 bytes as the safetensors library does."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def random_blocks(tensor: Tensor, seed: int) -> Iterator[memoryview]:
    """The tensor's bytes, block by block."""
    width = WIDTH_BYTES[tensor.dtype]
    keep, fix = (
        np.uint64(int.from_bytes(pattern.to_bytes(width, "little") * (8 // width), "little"))
        for pattern in PATTERNS[tensor.kind, tensor.dtype]
    )
    generator = np.random.PCG64([seed, tensor.number])
    for start in range(0, tensor.nbytes, BLOCK_BYTES):
        nbytes = min(BLOCK_BYTES, tensor.nbytes - start)
        words: NDArray[np.uint64] = generator.random_raw(-(-nbytes // 8))
        words &= keep
        words |= fix
        yield words.data.cast("B")[:nbytes]


def write_shard(path: Path, tensors: list[Tensor], *, seed: int, sparse: bool) -> None:
    ordered = in_file_order(tensors)
    header = header_of(ordered)
    with path.open("wb") as file:
        file.write(header)
        if sparse:
            file.truncate(len(header) + total_bytes(ordered))
        else:
            write_data(file, ordered, seed)


def write_data(file: BinaryIO, tensors: Iterable[Tensor], seed: int) -> None:
    for tensor in tensors:
        for block in random_blocks(tensor, seed):
            file.write(block)


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def make_checkpoint(
    folder: Path,
    *,
    shape: str,
    size_bytes: int,
    shard_bytes: int,
    dtype: str = "bf16",
    seed: int = 0,
    sparse: bool = False,
    tensor_count: int | None = None,
) -> list[Path]:
    """Write the checkpoint into `folder` (made when missing) and return its weight files in order.

    The tensors take at most `size_bytes`, and less than that by under 64 rows of the embedding and of the head.
    `sparse` leaves all data as holes. With `tensor_count` the model is cut after that many tensors, so it is one for
    tools, not for engines. Raises UsageError when the family has no model that small.
    """
    size = fit(shape, size_bytes, DTYPES[dtype], tensor_count)
    tensors = tensors_of(shape, size, DTYPES[dtype], tensor_count)
    folder.mkdir(parents=True, exist_ok=True)
    config, _ = SHAPES[shape](size, DTYPES[dtype])
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    shards = into_shards(tensors, shard_bytes)
    if len(shards) == 1:
        paths = [folder / "model.safetensors"]
    else:
        paths = [folder / f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        weight_map = {tensor.name: path.name for path, shard in zip(paths, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total_bytes(tensors)}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / "model.safetensors.index.json", index)
    for path, shard in zip(paths, shards, strict=True):
        write_shard(path, shard, seed=seed, sparse=sparse)
    return paths


def size_argument(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}: {error.hint}") from error


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a synthetic safetensors checkpoint.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write it; made when missing")
    parser.add_argument("--shape", choices=SHAPES, default="llama", help="model family (default: llama)")
    parser.add_argument("--size", type=size_argument, default=2 * GIB, help="tensor bytes to aim at (default: 2GiB)")
    parser.add_argument(
        "--shard-size", type=size_argument, default=500_000_000, help="most bytes a file (default: 500MB)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of all but FP8 tensors (default: bf16)")
    parser.add_argument("--seed", type=int, default=0, help="of the pseudo-random data (default: 0)")
    parser.add_argument("--sparse", action="store_true", help="leave the data as holes: any size, no disk")
    parser.add_argument("--tensors", type=int, metavar="N", help="exactly N tensors (deepseek-moe only)")
    parsed = parser.parse_args(arguments)
    if parsed.tensors is not None and (parsed.shape != "deepseek-moe" or parsed.tensors < 1):
        parser.error("--tensors takes a number from 1 and goes with --shape deepseek-moe")
    return parsed


def main() -> None:
    options = parse_arguments()
    try:
        paths = make_checkpoint(
            options.folder,
            shape=options.shape,
            size_bytes=options.size,
            shard_bytes=options.shard_size,
            dtype=options.dtype,
            seed=options.seed,
            sparse=options.sparse,
            tensor_count=options.tensors,
        )
    except UsageError as error:
        sys.exit(f"make_checkpoint: {error.message}")
    for path in paths:
        print(path)


if __name__ == "__main__":
    main()
