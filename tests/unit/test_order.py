"""Tensor names to towers, layers and roles, and the orders made of them, on the names of real model families."""

from __future__ import annotations

import random

import pytest

from coldctl.errors import UsageError
from coldctl.loader.format.header import Tensor
from coldctl.loader.order import Order, find_layers, order_facts, sort_key

LLAMA = {
    "pre": ["model.embed_tokens.weight"],
    0: [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.weight",
    ],
    2: ["model.layers.2.mlp.up_proj.weight", "model.layers.2.self_attn.o_proj.weight"],
    10: ["model.layers.10.mlp.up_proj.weight", "model.layers.10.self_attn.o_proj.weight"],
    "post": ["lm_head.weight", "model.norm.weight"],
}
LLAMA_IN_LAYERS = [name for names in LLAMA.values() for name in names]
LLAMA_ATTENTION_FIRST = [
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.2.self_attn.o_proj.weight",
    "model.layers.10.self_attn.o_proj.weight",
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.2.mlp.up_proj.weight",
    "model.layers.10.mlp.up_proj.weight",
    "lm_head.weight",
    "model.norm.weight",
]
GPT2_IN_LAYERS = [
    "wpe.weight",
    "wte.weight",
    "h.0.attn.c_attn.bias",
    "h.0.attn.c_attn.weight",
    "h.0.ln_1.weight",
    "h.0.mlp.c_fc.weight",
    "h.1.ln_1.weight",
    "ln_f.bias",
    "ln_f.weight",
]
BERT_IN_LAYERS = [
    "bert.embeddings.LayerNorm.weight",
    "bert.embeddings.word_embeddings.weight",
    "bert.pooler.dense.weight",
    "bert.encoder.layer.0.attention.output.dense.weight",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.0.intermediate.dense.weight",
    "bert.encoder.layer.0.output.dense.weight",
    "bert.encoder.layer.1.output.dense.weight",
]
DEEPSEEK_ATTENTION_FIRST = [
    "model.layers.0.self_attn.kv_b_proj.weight",
    "model.layers.0.self_attn.kv_b_proj.weight_scale_inv",
    "model.layers.3.self_attn.q_a_layernorm.weight",
    "model.layers.3.self_attn.q_a_proj.weight_scale_inv",
    "model.embed_tokens.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.3.mlp.experts.17.gate_proj.weight",
    "model.layers.3.mlp.experts.17.gate_proj.weight_scale_inv",
    "model.layers.3.mlp.experts.9.gate_proj.weight",
    "model.layers.3.mlp.gate.e_score_correction_bias",
    "model.layers.61.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
]


def tensors(names: list[str], sizes: dict[str, int] | None = None) -> list[Tensor]:
    """Tensors of 100 bytes, or of the size given for a name, shuffled, without regard to where they would lie."""
    made = [Tensor(name, "U8", (n,), 0, n) for name in names for n in [(sizes or {}).get(name, 100)]]
    random.Random(7).shuffle(made)
    return made


def ordered(names: list[str], order: Order, sizes: dict[str, int] | None = None) -> list[str]:
    made = tensors(names, sizes)
    return [tensor.name for tensor in sorted(made, key=sort_key(order, made))]


@pytest.mark.parametrize("names", [LLAMA_IN_LAYERS, GPT2_IN_LAYERS, BERT_IN_LAYERS])
def test_layers_go_from_what_feeds_them_to_what_follows(names: list[str]) -> None:
    assert ordered(names, "layers") == names


@pytest.mark.parametrize("names", [LLAMA_ATTENTION_FIRST, DEEPSEEK_ATTENTION_FIRST])
def test_attention_of_all_layers_comes_first_with_its_scales_and_biases(names: list[str]) -> None:
    assert ordered(names, "attention-first") == names


def test_a_vision_tower_is_read_before_the_layers_of_the_language_model() -> None:
    names = [
        "visual.blocks.0.attn.qkv.weight",
        "visual.blocks.0.norm1.weight",
        "visual.blocks.31.attn.qkv.weight",
        "visual.patch_embed.proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "lm_head.weight",
    ]
    sizes = {"model.layers.0.self_attn.q_proj.weight": 5000}
    layers = find_layers(tensors(names, sizes))
    assert (layers.tower, layers.count) == ("model", 2)
    assert ordered(names, "layers", sizes) == names
    assert ordered(names, "attention-first", sizes) == [names[4], *names[:4], *names[5:]]


def test_the_main_tower_has_the_most_bytes_not_the_most_layers() -> None:
    names = ["vision.layers.0.w.weight", "text.layers.0.w.weight", "text.layers.1.w.weight", "text.layers.2.w.weight"]
    assert find_layers(tensors(names, {"vision.layers.0.w.weight": 301})).tower == "vision"
    assert find_layers(tensors(names, {"vision.layers.0.w.weight": 299})).tower == "text"


def test_the_layer_is_the_first_number_of_a_name() -> None:
    layers = find_layers(tensors(["model.layers.4.blocks.9.weight", "model.layers.0.mlp.experts.63.weight"]))
    assert (layers.tower, layers.count) == ("model", 5)
    assert layers.position("model.layers.4.blocks.9.weight") == 4


def test_all_spellings_of_a_layer_are_known_and_no_others() -> None:
    for spelling in ("layers", "layer", "h", "blocks", "block"):
        assert find_layers(tensors([f"m.{spelling}.3.w"])).count == 4
        assert find_layers(tensors([f"{spelling}.3.w"])).tower == ""
    for name in ("m.mlayers.3.w", "m.layers.3", "m.layers.x.w", "m.layers3.w", "m.layers.\u0663.w"):
        assert find_layers(tensors([name])).count == 0


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "output.weight", "embed_out.weight", "model.norm.weight", "transformer.ln_f.bias",
             "model.final_layernorm.weight"],
)  # fmt: skip
def test_heads_and_final_norms_come_last(name: str) -> None:
    assert ordered([name, "aa.weight", "zz.weight", "m.layers.0.w"], "layers")[-1] == name


def test_a_name_that_only_looks_like_a_head_does_not_come_last() -> None:
    names = ["lm_head_norm.weight", "m.layers.0.output.dense.weight", "m.layers.0.w", "m.layers.1.w"]
    assert ordered(names, "layers") == names


def test_without_layers_there_is_one_group_and_what_follows_it() -> None:
    layers = find_layers(tensors(["b.weight", "a.weight"]))
    assert (layers.tower, layers.count) == (None, 0)
    assert ordered(["a.weight", "b.weight", "lm_head.weight"], "layers") == ["a.weight", "b.weight", "lm_head.weight"]


def test_an_absurd_layer_number_is_no_layer() -> None:
    name = f"model.layers.{'9' * 5000}.weight"
    assert find_layers(tensors([name])).count == 0
    assert ordered(["a", name], "layers") == ["a", name]


def test_names_go_by_their_utf8_bytes() -> None:
    # U+FF5E is EF BD 9E and U+1F600 is F0 9F 98 80 in UTF-8; UTF-16, as JavaScript sorts, has them the other way round.
    assert ordered(["\U0001f600", "a", "\uff5e", "Z"], "name") == ["Z", "a", "\uff5e", "\U0001f600"]


def test_file_order_is_the_offset_then_the_size() -> None:
    made = [Tensor("a", "U8", (8,), 4, 8), Tensor("b", "U8", (0,), 4, 0), Tensor("c", "U8", (4,), 0, 4)]
    assert [t.name for t in sorted(made, key=sort_key("file", made))] == ["c", "b", "a"]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UsageError, match="no such order"):
        sort_key("random", [])  # type: ignore[arg-type]


def test_an_order_knows_its_layers_and_the_bytes_of_attention() -> None:
    tensors = [
        Tensor("model.layers.0.self_attn.q_proj.weight", "U8", (70,), 0, 70),
        Tensor("model.layers.3.self_attn.q_proj.weight", "U8", (7,), 70, 7),
        Tensor("model.layers.3.mlp.up_proj.weight", "U8", (500,), 77, 500),
        Tensor("visual.blocks.0.attn.qkv.weight", "U8", (90,), 577, 90),
    ]
    facts = order_facts("attention-first", tensors)
    assert facts is not None
    assert (facts.layers, facts.attention_bytes) == (4, 77)
    assert order_facts("name", tensors) is None
    flat = order_facts("layers", [Tensor("weight", "U8", (5,), 0, 5)])
    assert flat is not None
    assert flat.layers == 0
