"""Tensor names to the part that a module plays: projection, embedding, head; its lane; its expert.

Only names that mean one thing in all model families are known. A fused projection (`qkv_proj`, `c_attn`,
`query_key_value`, `gate_up_proj`), and names that are fused in some families and plain in others (`dense_h_to_4h`,
`fc1`, `mlp.w1`), play no part here. The names are those of the checkpoints of Llama (both spellings), Qwen, Mistral,
Mixtral, DeepSeek (both spellings), Gemma, GPT-NeoX, GPT-J, Falcon, OPT, BERT, ViT and CLIP.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from coldctl.loader.order import in_layer

Role = Literal["q", "k", "v", "o", "gate", "up", "down", "embedding", "head"]
Lane = Literal["q", "k", "v", "rest"]

_LLAMA_MLPS = ("feed_forward", "ffn", "experts.N", "shared_experts")
"""Elsewhere (Qwen 1, DINO) `w2` is no down projection."""

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("q_proj", "q_b_proj", "wq", "wq_b", "self.query", "attention.query"), "q"),
    **dict.fromkeys(("k_proj", "wk", "self.key", "attention.key"), "k"),
    **dict.fromkeys(("v_proj", "wv", "self.value", "attention.value"), "v"),
    **dict.fromkeys(("o_proj", "attention.wo", "attn.wo", "attention.output.dense"), "o"),
    **dict.fromkeys(("self_attn.out_proj", "encoder_attn.out_proj", "attn.out_proj", "attention.out_proj"), "o"),
    **dict.fromkeys(("self_attn.dense", "attention.dense", "self_attention.dense"), "o"),
    **dict.fromkeys(("gate_proj", *(f"{mlp}.w1" for mlp in _LLAMA_MLPS)), "gate"),
    **dict.fromkeys(("up_proj", "intermediate.dense", *(f"{mlp}.w3" for mlp in _LLAMA_MLPS)), "up"),
    **dict.fromkeys(("down_proj", "output.dense", *(f"{mlp}.w2" for mlp in _LLAMA_MLPS)), "down"),
    **dict.fromkeys(("embed_tokens", "embed_tokens_per_layer", "wte", "word_embeddings"), "embedding"),
    **dict.fromkeys(("tok_embeddings", "token_embedding", "embed_in", "backbone.embeddings"), "embedding"),
    **dict.fromkeys((".embed", ".shared", "model.shared"), "embedding"),
    **dict.fromkeys(("lm_head", "embed_out", "shared_head.head", ".head"), "head"),
}
"""By the end of a module's path, with a number in it written N, and a dot before the path's first word."""

_HEADS_OUTSIDE_LAYERS = {"output", "output_layer"}

_LONGEST_PATH = 3
_EXPERT = re.compile(r"(?:^|\.)experts\.(\d{1,9})\.", re.ASCII)


class Expert(NamedTuple):
    """The `number`th expert of a `block`, which is what the name has before `experts`."""

    block: str
    number: int


def role_of(name: str) -> Role | None:
    """The part that the module of a tensor plays: the same for its weight, bias and scales. None when unknown."""
    if is_expert_stack(name):
        return None
    module = ["", *("N" if part.isdecimal() else part for part in name.split(".")[:-1])]
    for length in range(_LONGEST_PATH, 0, -1):
        if role := _ROLES.get(".".join(module[-length:])):
            return role
    return "head" if module[-1] in _HEADS_OUTSIDE_LAYERS and not in_layer(name) else None


def lane_of(name: str) -> Lane:
    """`q`, `k` or `v` for the weight, bias and scales of a separate projection; all else is the rest."""
    role = role_of(name)
    return role if role == "q" or role == "k" or role == "v" else "rest"


def is_edge(name: str) -> bool:
    """True for the embedding of tokens and for the head, outside any layer."""
    return role_of(name) in ("embedding", "head") and not in_layer(name)


def expert_of(name: str) -> Expert | None:
    """The expert that a tensor is part of, by `experts.N.` in its name; None for all other tensors."""
    match = _EXPERT.search(name)
    return Expert(name[: match.start()], int(match[1])) if match else None


def is_expert_stack(name: str) -> bool:
    """True for a tensor that holds all experts of a block: below `experts`, without a number."""
    return "experts" in name.split(".") and expert_of(name) is None
