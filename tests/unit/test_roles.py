"""What part a module plays, by the names of tensors in real checkpoints."""

from __future__ import annotations

import pytest

from coldctl.loader.roles import Expert, Role, expert_of, is_edge, is_expert_stack, lane_of, role_of

ROLES: dict[Role, list[str]] = {
    "q": [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.qweight",
        "model.layers.0.self_attn.q_b_proj.weight_scale_inv",
        "layers.0.attention.wq.weight",
        "layers.0.attn.wq_b.scale",
        "bert.encoder.layer.0.attention.self.query.weight",
        "vit.encoder.layer.0.attention.attention.query.bias",
    ],
    "k": [
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.k_proj.k_scale",
        "layers.0.attention.wk.weight",
        "bert.encoder.layer.0.attention.self.key.weight",
    ],
    "v": [
        "vision_tower.vision_model.encoder.layers.3.self_attn.v_proj.bias",
        "layers.0.attention.wv.weight",
        "bert.encoder.layer.0.attention.self.value.weight",
    ],
    "o": [
        "model.layers.0.self_attn.o_proj.weight",
        "layers.0.attention.wo.weight",
        "layers.0.attn.wo.scale",
        "gpt_neox.layers.0.attention.dense.weight",
        "transformer.h.0.self_attention.dense.weight",
        "model.decoder.layers.0.self_attn.out_proj.bias",
        "bert.encoder.layer.0.attention.output.dense.weight",
    ],
    "gate": [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.3.mlp.experts.17.gate_proj.weight_scale_inv",
        "model.layers.0.block_sparse_moe.experts.5.w1.weight",
        "layers.0.feed_forward.w1.weight",
        "layers.0.ffn.shared_experts.w1.scale",
    ],
    "up": [
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.block_sparse_moe.experts.5.w3.weight",
        "layers.0.feed_forward.w3.weight",
        "bert.encoder.layer.0.intermediate.dense.weight",
    ],
    "down": [
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.block_sparse_moe.experts.5.w2.weight",
        "layers.0.feed_forward.w2.weight",
        "bert.encoder.layer.0.output.dense.bias",
    ],
    "embedding": [
        "model.embed_tokens.weight",
        "model.embed_tokens.weight_scale",
        "model.language_model.embed_tokens_per_layer.weight",
        "transformer.wte.weight",
        "wte.weight",
        "bert.embeddings.word_embeddings.weight",
        "transformer.word_embeddings.weight",
        "tok_embeddings.weight",
        "gpt_neox.embed_in.weight",
        "backbone.embeddings.weight",
        "shared.weight",
        "embed.weight",
    ],
    "head": [
        "lm_head.weight",
        "lm_head.bias",
        "language_model.lm_head.weight_scale",
        "output.weight",
        "language_model.output.weight",
        "transformer.output_layer.weight",
        "embed_out.weight",
        "head.weight",
    ],
}
NO_ROLE = [
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.gate.e_score_correction_bias",
    "model.layers.0.mlp.shared_expert_gate.weight",
    "model.layers.0.block_sparse_moe.gate.weight",
    "layers.0.feed_forward.gate.weight",
    "gpt_neox.layers.0.attention.query_key_value.weight",
    "model.layers.0.self_attn.qkv_proj.weight",
    "model.layers.0.mlp.gate_up_proj.weight",
    "visual.blocks.0.attn.qkv.bias",
    "h.0.attn.c_attn.weight",
    "h.0.attn.c_proj.weight",
    "h.0.mlp.c_fc.weight",
    "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight",
    "transformer.h.0.mlp.w1.weight",
    "transformer.h.0.mlp.w2.weight",
    "blocks.0.feed_forward.value.weight",
    "blocks.0.attention.output.weight",
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
    "model.layers.0.self_attn.kv_b_proj.weight",
    "model.layers.0.self_attn.q_a_proj.weight",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.self_attn.q_proj.lora_A.weight",
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.0.mlp.experts.down_proj_blocks",
    "model.layers.0.mlp.experts.down_proj.weight",
    "transformer.blocks.0.ffn.experts.mlp.w1",
    "transformer.wpe.weight",
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.position_ids",
    "vision_model.embeddings.class_embedding",
    "vision_model.head.probe",
    "lm_head.dense.weight",
    "model.norm.weight",
    "q_proj",
    "weight",
    "",
]


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ROLES.items() for name in names])
def test_a_module_of_a_known_name_has_its_role(role: Role, name: str) -> None:
    assert role_of(name) == role


@pytest.mark.parametrize("name", NO_ROLE)
def test_fused_modules_routers_norms_and_names_of_more_than_one_meaning_have_none(name: str) -> None:
    assert role_of(name) is None


def test_lanes_are_those_of_separate_projections_and_all_else_is_the_rest() -> None:
    for role, names in ROLES.items():
        assert {lane_of(name) for name in names} == {role if role in ("q", "k", "v") else "rest"}
    assert {lane_of(name) for name in NO_ROLE} == {"rest"}


def test_edges_are_embeddings_and_heads_and_nothing_else() -> None:
    for role, names in ROLES.items():
        assert {is_edge(name) for name in names} == {role in ("embedding", "head")}
    assert not any(is_edge(name) for name in NO_ROLE)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.layers.61.embed_tokens.weight", "embedding"),
        ("model.layers.61.shared_head.head.weight", "head"),
    ],
)
def test_the_embedding_and_head_of_multi_token_prediction_belong_to_their_layer(name: str, role: Role) -> None:
    assert role_of(name) == role
    assert not is_edge(name)


def test_an_expert_is_the_number_behind_experts() -> None:
    block = "model.layers.3.mlp"
    assert expert_of(f"{block}.experts.17.up_proj.weight") == Expert(block, 17)
    assert expert_of("experts.0.w1.weight") == Expert("", 0)
    for other in (
        "shared_experts.0.w1.weight",
        "experts.x.w1.weight",
        "experts.\u0663.w1.weight",
        "experts.w1.0.weight",
    ):
        assert expert_of(other) is None


def test_a_tensor_of_all_experts_is_a_stack() -> None:
    assert is_expert_stack("model.layers.0.mlp.experts.gate_up_proj")
    assert is_expert_stack("model.layers.0.mlp.experts.down_proj.weight")
    assert not is_expert_stack("model.layers.0.mlp.experts.0.down_proj.weight")
    assert not is_expert_stack("model.layers.0.mlp.shared_experts.down_proj.weight")
