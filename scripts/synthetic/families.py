"""Four model families: the names, shape proportions and config.json of each at any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.synthetic.dtypes import CONFIG_DTYPES

FP8_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Size:
    """What is free in a family once its proportions are set."""

    hidden: int
    layers: int
    vocab: int
    experts: int = 0


Entry = tuple[str, str, tuple[int, ...], str]
"""A tensor's name, dtype, shape and kind: weight, norm or scale."""
Model = tuple[dict[str, Any], Iterator[Entry]]
"""The config.json of a model, and its tensors in the model's own order."""


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
