"""Shares of a checkpoint, against numpy's slices of the same data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from coldctl.errors import UsageError
from coldctl.loader.format.checkpoint import open_checkpoint
from coldctl.loader.format.header import Tensor
from coldctl.loader.load.share import Share, share
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.order import Order
from coldctl.loader.plan import ordered_tensors
from coldctl.loader.source import LocalFile, Source
from tests import tiny

Pairs = list[tuple[Source, Tensor]]
Array = np.ndarray[Any, Any]
BITS = tiny.BITS | {"F8_E8M0": 8, "I8": 8, "I32": 32, "U32": 32}
RANKS = [2, 3, 4, 8]


class Cut(NamedTuple):
    """A tensor and the axis that it is to be split on, None for one that stays whole."""

    axis: int | None
    dtype: str
    shape: tuple[int, ...]


def f32(axis: int | None, *shape: int) -> Cut:
    return Cut(axis, "F32", shape)


LLAMA = {
    "model.embed_tokens.weight": f32(0, 240, 48),
    "model.layers.0.input_layernorm.weight": f32(None, 48),
    "model.layers.0.self_attn.q_proj.weight": f32(0, 96, 48),
    "model.layers.0.self_attn.q_proj.bias": f32(0, 96),
    "model.layers.0.self_attn.k_proj.weight": f32(0, 24, 48),
    "model.layers.0.self_attn.v_proj.weight": f32(0, 24, 48),
    "model.layers.0.self_attn.q_norm.weight": f32(None, 24),
    "model.layers.0.self_attn.o_proj.weight": f32(1, 48, 96),
    "model.layers.0.self_attn.o_proj.bias": f32(None, 48),
    "model.layers.0.mlp.gate_proj.weight": f32(0, 120, 48),
    "model.layers.0.mlp.up_proj.weight": f32(0, 120, 48),
    "model.layers.0.mlp.down_proj.weight": f32(1, 48, 120),
    "model.norm.weight": f32(None, 48),
    "lm_head.weight": f32(0, 240, 48),
}
FIRST_LLAMA = {
    "tok_embeddings.weight": f32(0, 48, 24),
    "layers.0.attention.wq.weight": f32(0, 24, 24),
    "layers.0.attention.wk.weight": f32(0, 24, 24),
    "layers.0.attention.wv.weight": f32(0, 24, 24),
    "layers.0.attention.wo.weight": f32(1, 24, 24),
    "layers.0.feed_forward.w1.weight": f32(0, 72, 24),
    "layers.0.feed_forward.w2.weight": f32(1, 24, 72),
    "layers.0.feed_forward.w3.weight": f32(0, 72, 24),
    "output.weight": f32(0, 48, 24),
    "rope.freqs": f32(None, 24),
}
MIXTRAL = {
    "model.layers.0.block_sparse_moe.gate.weight": f32(None, 24, 24),
    "model.layers.0.block_sparse_moe.experts.0.w1.weight": f32(0, 48, 24),
    "model.layers.0.block_sparse_moe.experts.0.w2.weight": f32(1, 24, 48),
    "model.layers.0.block_sparse_moe.experts.0.w3.weight": f32(0, 48, 24),
}
DEEPSEEK = {
    "model.layers.0.mlp.gate.weight": f32(None, 24, 24),
    "model.layers.0.mlp.gate.e_score_correction_bias": f32(None, 24),
    "model.layers.0.mlp.shared_experts.gate_proj.weight": f32(0, 48, 24),
    "model.layers.0.self_attn.q_a_proj.weight": f32(None, 24, 24),
    "model.layers.0.self_attn.q_b_proj.weight": f32(0, 24, 24),
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": f32(None, 24, 24),
    "model.layers.0.self_attn.kv_b_proj.weight": f32(None, 48, 24),
    "model.layers.0.self_attn.o_proj.weight": f32(1, 24, 24),
    "model.layers.1.embed_tokens.weight": f32(0, 48, 24),
    "model.layers.1.shared_head.head.weight": f32(0, 48, 24),
}
BERT = {
    "bert.embeddings.word_embeddings.weight": f32(0, 48, 24),
    "bert.embeddings.position_embeddings.weight": f32(None, 48, 24),
    "bert.encoder.layer.0.attention.self.query.weight": f32(0, 24, 24),
    "bert.encoder.layer.0.attention.self.query.bias": f32(0, 24),
    "bert.encoder.layer.0.attention.self.key.weight": f32(0, 24, 24),
    "bert.encoder.layer.0.attention.self.value.weight": f32(0, 24, 24),
    "bert.encoder.layer.0.attention.output.dense.weight": f32(1, 24, 24),
    "bert.encoder.layer.0.attention.output.dense.bias": f32(None, 24),
    "bert.encoder.layer.0.attention.output.LayerNorm.weight": f32(None, 24),
    "bert.encoder.layer.0.intermediate.dense.weight": f32(0, 48, 24),
    "bert.encoder.layer.0.output.dense.weight": f32(1, 24, 48),
    "bert.pooler.dense.weight": f32(None, 24, 24),
}
FUSED = {
    "gpt_neox.embed_in.weight": f32(0, 48, 24),
    "gpt_neox.layers.0.attention.query_key_value.weight": f32(None, 72, 24),
    "gpt_neox.layers.0.attention.query_key_value.bias": f32(None, 72),
    "gpt_neox.layers.0.attention.dense.weight": f32(1, 24, 24),
    "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": f32(None, 96, 24),
    "model.layers.0.self_attn.qkv_proj.weight": f32(None, 72, 24),
    "model.layers.0.mlp.gate_up_proj.weight": f32(None, 96, 24),
    "transformer.h.0.mlp.w2.weight": f32(None, 48, 24),
    "transformer.h.0.attn.c_attn.weight": f32(None, 24, 72),
    "transformer.h.0.attn.c_proj.weight": f32(None, 24, 24),
    "transformer.h.0.mlp.c_proj.weight": f32(None, 96, 24),
    "transformer.wte.weight": f32(0, 48, 24),
    "embed_out.weight": f32(0, 48, 24),
}
STACKED = {
    "model.layers.0.mlp.experts.gate_up_proj": f32(None, 8, 24, 48),
    "model.layers.0.mlp.experts.down_proj": f32(None, 8, 24, 24),
    "model.layers.0.mlp.experts.down_proj_bias": f32(None, 8, 24),
    "model.layers.0.mlp.experts.down_proj_blocks": Cut(None, "U8", (8, 24, 3, 16)),
    "model.layers.0.mlp.experts.up_proj.weight": f32(None, 192, 24),
    "model.layers.1.conv.up_proj.weight": f32(None, 24, 24, 3),
}
FAMILIES = [LLAMA, FIRST_LLAMA, MIXTRAL, DEEPSEEK, BERT, FUSED, STACKED]

Q = "model.layers.0.self_attn.q_proj"
O = "model.layers.0.self_attn.o_proj"  # noqa: E741
UP = "model.layers.0.mlp.experts.3.up_proj"
SPLIT_TOGETHER = {
    "FP8 by row": {
        f"{Q}.weight": Cut(0, "F8_E4M3", (48, 32)),
        f"{Q}.weight_scale": Cut(0, "F32", (48, 1)),
        f"{Q}.bias": Cut(0, "BF16", (48,)),
        f"{Q}.input_scale": Cut(None, "F32", ()),
        f"{O}.weight": Cut(1, "F8_E4M3", (48, 48)),
        f"{O}.weight_scale": Cut(None, "F32", (48, 1)),
        f"{O}.bias": Cut(None, "BF16", (48,)),
    },
    "FP8 by tensor": {
        f"{Q}.weight": Cut(0, "F8_E4M3", (48, 32)),
        f"{Q}.weight_scale": Cut(None, "F32", (1,)),
        f"{Q}.q_scale": Cut(None, "F32", (1, 1)),
        f"{O}.weight": Cut(1, "F8_E4M3", (32, 48)),
        f"{O}.weight_scale": Cut(None, "F32", ()),
    },
    "INT8 by row, scales in one dimension": {
        f"{Q}.weight": Cut(0, "I8", (48, 48)),
        f"{Q}.weight_scale": Cut(0, "BF16", (48,)),
        f"{Q}.weight_zero_point": Cut(0, "I8", (48, 1)),
        f"{O}.weight": Cut(1, "I8", (48, 48)),
        f"{O}.weight_scale": Cut(None, "BF16", (48,)),
    },
    "MXFP8, scales by groups of 32": {
        f"{Q}.weight": Cut(0, "F8_E4M3", (48, 768)),
        f"{Q}.weight_scale": Cut(0, "F8_E8M0", (48, 24)),
        f"{O}.weight": Cut(1, "F8_E4M3", (48, 768)),
        f"{O}.weight_scale": Cut(1, "F8_E8M0", (48, 24)),
    },
    "FP8 by blocks of 16": {
        f"{UP}.weight": Cut(0, "F8_E4M3", (384, 40)),
        f"{UP}.weight_scale_inv": Cut(0, "F32", (24, 3)),
        f"{O}.weight": Cut(1, "F8_E4M3", (40, 384)),
        f"{O}.weight_scale_inv": Cut(1, "F32", (3, 24)),
    },
    "one block is as long as the dimension": {
        f"{Q}.weight": Cut(0, "F8_E4M3", (24, 384)),
        f"{Q}.weight_scale_inv": Cut(None, "F32", (1, 3)),
        f"{O}.weight": Cut(1, "F8_E4M3", (384, 24)),
        f"{O}.weight_scale_inv": Cut(None, "F32", (3, 1)),
    },
}
WHOLE_TOGETHER: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "GPTQ": {
        "qweight": ("I32", (24, 48)),
        "qzeros": ("I32", (2, 48)),
        "scales": ("F16", (2, 48)),
        "g_idx": ("I32", (48,)),
        "bias": ("F16", (48,)),
    },
    "pack-quantized": {
        "weight_packed": ("I32", (48, 6)),
        "weight_scale": ("BF16", (48, 24)),
        "weight_shape": ("I64", (2,)),
    },
    "NVFP4": {"weight": ("U8", (48, 24)), "weight_scale": ("F8_E4M3", (48, 24)), "weight_scale_2": ("F32", ())},
    "NF4": {"weight": ("U8", (1152, 24)), "weight.absmax": ("U8", (48,)), "weight.quant_map": ("F32", (16,))},
    "LLM.int8": {"weight": ("I8", (48, 48)), "SCB": ("F32", (48,)), "weight_format": ("U8", ())},
    "MLX": {"weight": ("U32", (48, 24)), "scales": ("F16", (48, 24)), "biases": ("F16", (48, 24))},
    "four bits": {"weight": ("F4", (48, 48))},
    "scales of four bits": {"weight": ("F8_E4M3", (48, 48)), "weight_scale": ("F4", (48, 48))},
    "transposed, with scales of another name": {"weight": ("I8", (48, 48)), "weight_scales": ("F16", (48,))},
    "a scale by input": {"weight": ("I8", (48, 48)), "pre_quant_scale": ("F16", (48,))},
    "scales of another shape": {"weight": ("F16", (48, 48)), "weight_scale": ("F16", (40, 40))},
    "blocks that are no power of two": {"weight": ("F8_E4M3", (72, 72)), "weight_scale_inv": ("F32", (24, 24))},
    "nothing to split": {"weight": ("F16", (0, 0)), "bias": ("F16", (0,))},
    "scales without elements": {"weight": ("F16", (48, 48)), "weight_scale": ("F16", (0, 0))},
    "a bias alone": {"bias": ("F16", (48,))},
}


def data(dtype: str, shape: tuple[int, ...], seed: int) -> tiny.Made:
    size_bytes = math.prod(shape) * BITS[dtype] // 8
    return tiny.Made(dtype, shape, np.random.default_rng(seed).bytes(size_bytes))


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    tiny.write_shard(path, {name: data(*each, seed) for seed, (name, each) in enumerate(tensors.items())})


def pairs_of(path: Path, order: Order = "file") -> Pairs:
    return [(shard.source, tensor) for shard, tensor in ordered_tensors(open_checkpoint(path), order)]


def named(*names: str) -> Pairs:
    """Tensors of 8 x 8, one after the other in a file that is never read."""
    source = LocalFile("w", "/w", (1, 2, 1 << 20, 3))
    return [(source, Tensor(name, "F16", (8, 8), 128 * number, 128)) for number, name in enumerate(names)]


def names(pairs_or_share: Pairs | Share) -> list[str]:
    if isinstance(pairs_or_share, Share):
        return [wanted.name for wanted in pairs_or_share.wanted]
    return [tensor.name for _, tensor in pairs_or_share]


def fetched(wanted: Wanted, file: bytes) -> bytes:
    """What a reader of `wanted` brings, strip by strip."""
    if wanted.gather is None:
        return file[wanted.offset_bytes : wanted.offset_bytes + wanted.nbytes]
    strips, strip_bytes, pitch_bytes = wanted.gather
    assert strips * strip_bytes == wanted.nbytes
    begins = range(wanted.offset_bytes, wanted.offset_bytes + strips * pitch_bytes, pitch_bytes)
    return b"".join(file[begin : begin + strip_bytes] for begin in begins)


def elements(dtype: str, shape: tuple[int, ...], raw: bytes) -> Array:
    """Raw bytes as an array of opaque elements, for dtypes that numpy does not have, too."""
    return np.frombuffer(raw, f"V{BITS[dtype] // 8}").reshape(shape)


def assert_slices(path: Path, cuts: Mapping[str, Cut], ranks: int) -> None:
    """Every rank's share of the file is numpy's slice of each tensor."""
    file, stored, pairs = path.read_bytes(), tiny.read_shard(path), pairs_of(path)
    for rank in range(ranks):
        shared = share(pairs, tp=(rank, ranks))
        assert names(shared) == names(pairs)
        assert set(shared.replicated) == {name for name, cut in cuts.items() if cut.axis is None}
        for wanted in shared.wanted:
            cut = cuts[wanted.name]
            expected = elements(cut.dtype, cut.shape, stored[wanted.name].data)
            if cut.axis is not None:
                expected = np.split(expected, ranks, axis=cut.axis)[rank]
            assert wanted.shape == expected.shape, wanted.name
            assert wanted.nbytes == expected.nbytes
            assert wanted.whole == (cut.axis is None)
            assert fetched(wanted, file) == expected.tobytes(), wanted.name


def places(wanted: Wanted) -> list[int]:
    """Every byte of the file that `wanted` reads."""
    numbers = np.arange(wanted.tensor.offset_bytes + wanted.tensor.nbytes, dtype=np.int64)
    if wanted.gather is None:
        return list(numbers[wanted.offset_bytes : wanted.offset_bytes + wanted.nbytes])
    begins = wanted.offset_bytes + wanted.gather.pitch_bytes * np.arange(wanted.gather.strips)
    return list((begins[:, None] + np.arange(wanted.gather.strip_bytes)).reshape(-1))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_gets_its_slice_of_what_is_split_and_all_of_the_rest(
    tmp_path: Path, family: dict[str, Cut], ranks: int
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {name: cut[1:] for name, cut in family.items()})
    assert_slices(path, family, ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_slices_are_those_of_the_safetensors_library(tmp_path: Path, ranks: int) -> None:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(3)
    safetensors.numpy.save_file({name: rng.random(cut.shape, np.float32) for name, cut in LLAMA.items()}, path)
    read = safetensors.numpy.load_file(path)
    shares = [share(pairs_of(path), tp=(rank, ranks)) for rank in range(ranks)]
    for parts in zip(*(shared.wanted for shared in shares), strict=True):
        name, axis = parts[0].name, LLAMA[parts[0].name].axis
        arrays = [np.frombuffer(fetched(part, path.read_bytes()), np.float32).reshape(part.shape) for part in parts]
        joined = arrays[0] if axis is None else np.concatenate(arrays, axis=axis)
        np.testing.assert_array_equal(joined, read[name])


def test_one_rank_takes_everything_and_shares_nothing(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {name: cut[1:] for name, cut in LLAMA.items()})
    pairs = pairs_of(tmp_path)
    alone = share(pairs, tp=(0, 1), stage=(0, 1), experts=(0, 1))
    assert alone == share(pairs)
    assert all(wanted.whole and wanted.gather is None for wanted in alone.wanted)
    assert [wanted.tensor for wanted in alone.wanted] == [tensor for _, tensor in pairs]
    assert alone.replicated == ()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("cuts", SPLIT_TOGETHER.values(), ids=SPLIT_TOGETHER.keys())
def test_scales_and_biases_are_split_with_their_weight(tmp_path: Path, cuts: dict[str, Cut], ranks: int) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {name: cut[1:] for name, cut in cuts.items()})
    assert_slices(path, cuts, ranks)


@pytest.mark.parametrize("module", [Q, O])
@pytest.mark.parametrize("members", WHOLE_TOGETHER.values(), ids=WHOLE_TOGETHER.keys())
def test_a_module_with_a_part_that_cannot_be_split_stays_whole(
    tmp_path: Path, module: str, members: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    write(tmp_path / "model.safetensors", {f"{module}.{kind}": member for kind, member in members.items()})
    pairs = pairs_of(tmp_path)
    shared = share(pairs, tp=(1, 2))
    assert [wanted.tensor for wanted in shared.wanted] == [tensor for _, tensor in pairs]
    assert all(wanted.whole and wanted.gather is None for wanted in shared.wanted)
    assert list(shared.replicated) == names(pairs)


def test_a_bias_that_does_not_fit_its_rows_keeps_them_together(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {f"{Q}.weight": ("F16", (48, 8)), f"{Q}.bias": ("F16", (40,))})
    assert set(share(pairs_of(tmp_path), tp=(1, 2)).replicated) == {f"{Q}.weight", f"{Q}.bias"}


def test_a_module_in_two_files_is_one_module(tmp_path: Path) -> None:
    weight, scale = data("F8_E4M3", (48, 8), 1), data("F32", (48, 5), 2)
    tiny.write_sharded(tmp_path, [{f"{Q}.weight_scale": scale}, {f"{Q}.weight": weight}])
    assert share(pairs_of(tmp_path), tp=(0, 2)).replicated == (), "rows of scales go with the rows of the weight"
    tiny.write_sharded(tmp_path, [{f"{Q}.weight_scale": data("F32", (47, 5), 2)}, {f"{Q}.weight": weight}])
    assert set(share(pairs_of(tmp_path), tp=(0, 2)).replicated) == {f"{Q}.weight", f"{Q}.weight_scale"}


@pytest.mark.parametrize("module", [Q, O])
def test_what_the_ranks_do_not_divide_is_whole_with_all_that_belongs_to_it(tmp_path: Path, module: str) -> None:
    cuts = {f"{module}.weight": f32(None, 50, 50), f"{module}.bias": f32(None, 50)}
    write(tmp_path / "model.safetensors", {name: cut[1:] for name, cut in cuts.items()})
    for ranks in (3, 4, 100):
        assert_slices(tmp_path / "model.safetensors", cuts, ranks)


@pytest.mark.parametrize(
    ("out", "blocks", "ranks", "split"),
    [(1024, 8, 8, True), (1024, 8, 16, False), (192, 2, 2, False), (640, 5, 5, True), (2112, 17, 2, False),
     (384, 2, 2, False), (96, 1, 2, True)],
)  # fmt: skip
def test_rows_are_cut_between_the_blocks_of_128_or_256_of_their_scales_only(
    out: int, blocks: int, ranks: int, split: bool
) -> None:
    source = LocalFile("w", "/w", (1, 2, 1 << 30, 3))
    weight = Tensor(f"{Q}.weight", "F8_E4M3", (out, 128), 0, out * 128)
    scale = Tensor(f"{Q}.weight_scale_inv", "F32", (blocks, 1), weight.nbytes, blocks * 4)
    shared = share([(source, weight), (source, scale)], tp=(0, ranks))
    assert (weight.name not in shared.replicated) == split


@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]), st.integers(2, 8), st.booleans(), st.data())
def test_no_rank_gets_a_row_without_its_scale(
    out: int, block: int, ranks: int, transposed: bool, drawn: st.DataObject
) -> None:
    other = drawn.draw(st.integers(1, 40))
    shape, scale_shape = (out, other), (-(-out // block), -(-other // block))
    module, axis = (O, 1) if transposed else (Q, 0)
    if transposed:
        shape, scale_shape = shape[::-1], scale_shape[::-1]
    source = LocalFile("w", "/w", (1, 2, 1 << 30, 3))
    weight = Tensor(f"{module}.weight", "F8_E4M3", shape, 0, math.prod(shape))
    scale = Tensor(f"{module}.weight_scale_inv", "F32", scale_shape, weight.nbytes, 4 * math.prod(scale_shape))
    scale_of = np.arange(out) // block
    for rank in range(ranks):
        part, part_scale = share([(source, weight), (source, scale)], tp=(rank, ranks)).wanted
        first, first_scale = (0 if each.whole else rank * each.shape[axis] for each in (part, part_scale))
        mine = scale_of[first : first + part.shape[axis]] - first_scale
        assert mine.min() >= 0
        assert mine.max() < part_scale.shape[axis]
        if not part_scale.whole:
            np.testing.assert_array_equal(mine, np.arange(part.shape[axis]) // block)


@given(
    st.sampled_from([(Q, 0), (UP, 0), ("lm_head", 0), (O, 1), ("layers.0.feed_forward.w2", 1)]),
    st.sampled_from(["F32", "BF16", "F8_E4M3"]),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(2, 8),
    st.integers(0, 9),
)
def test_the_parts_of_all_ranks_are_the_tensor_once(
    module: tuple[str, int], dtype: str, rows: int, columns: int, ranks: int, offset_bytes: int
) -> None:
    name, axis = f"{module[0]}.weight", module[1]
    made = data(dtype, (rows, columns), 5)
    file = bytes(offset_bytes) + made.data
    whole = elements(dtype, (rows, columns), made.data)
    source = LocalFile("w", "/w", (1, 2, len(file), 3))
    tensor = Tensor(name, dtype, (rows, columns), offset_bytes, len(made.data))
    shares = [share([(source, tensor)], tp=(rank, ranks)) for rank in range(ranks)]
    divided = whole.size > 0 and whole.shape[axis] % ranks == 0
    arrays = [elements(dtype, wanted.shape, fetched(wanted, file)) for (wanted,), _ in shares]
    if divided:
        assert np.concatenate(arrays, axis=axis).tobytes() == made.data
        read = Counter(place for (wanted,), _ in shares for place in places(wanted))
        assert read == Counter(range(offset_bytes, len(file))), "each byte is read by one rank"
    else:
        assert all(array.tobytes() == made.data for array in arrays)
    assert {shared.replicated for shared in shares} == {() if divided else (name,)}


def test_strips_are_described_and_one_strip_is_plain() -> None:
    source = LocalFile("w", "/w", (1, 2, 1 << 20, 3))
    several = Tensor(f"{O}.weight", "F16", (3, 8), 1000, 48)
    (wanted,) = share([(source, several)], tp=(1, 4)).wanted
    assert (wanted.shape, wanted.offset_bytes, wanted.nbytes, wanted.gather) == ((3, 2), 1004, 12, (3, 4, 16))
    one = Tensor(f"{O}.weight", "F16", (1, 8), 1000, 16)
    (wanted,) = share([(source, one)], tp=(1, 4)).wanted
    assert (wanted.shape, wanted.offset_bytes, wanted.nbytes, wanted.gather) == ((1, 2), 1004, 4, None)


def test_fewer_kv_heads_than_ranks_means_fractions_of_a_head() -> None:
    """As the docstring says: 2 heads of 64 over 4 ranks are 32 rows each."""
    source = LocalFile("w", "/w", (1, 2, 1 << 20, 3))
    key = Tensor("model.layers.0.self_attn.k_proj.weight", "BF16", (128, 16), 0, 4096)
    parts = [share([(source, key)], tp=(rank, 4)).wanted[0] for rank in range(4)]
    assert [(part.offset_bytes, part.shape) for part in parts] == [(1024 * rank, (32, 16)) for rank in range(4)]


def test_the_order_of_the_plan_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {name: cut[1:] for name, cut in LLAMA.items()})
    pairs = pairs_of(tmp_path, "attention-first")
    assert names(share(pairs, tp=(1, 2))) == names(pairs)
    assert names(share(pairs[::-1], tp=(1, 2))) == names(pairs)[::-1]
    replicated = share(pairs, tp=(1, 2)).replicated
    assert list(replicated) == [name for name in names(pairs) if LLAMA[name].axis is None]


STAGED = named(
    "lm_head.weight",
    "model.norm.weight",
    "model.embed_tokens.weight",
    *(f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(7)),
    "visual.blocks.6.attn.qkv.weight",
)


def test_stages_take_the_layers_in_turn_and_the_first_ones_the_remainder() -> None:
    first, second, third = (share(STAGED, stage=(stage, 3)) for stage in range(3))
    layers = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(7)]
    assert names(first) == ["model.embed_tokens.weight", *layers[:3], "visual.blocks.6.attn.qkv.weight"]
    assert names(second) == layers[3:5]
    assert names(third) == ["lm_head.weight", "model.norm.weight", *layers[5:]]
    assert first.replicated == second.replicated == third.replicated == ()


@pytest.mark.parametrize("stages", range(1, 8))
def test_the_stages_are_the_checkpoint_once(stages: int) -> None:
    shares = [share(STAGED, stage=(stage, stages)) for stage in range(stages)]
    assert Counter(name for shared in shares for name in names(shared)) == Counter(names(STAGED))
    assert all(wanted.whole for shared in shares for wanted in shared.wanted)
    layers = [sum("model.layers" in name for name in names(shared)) for shared in shares]
    assert layers == sorted(layers, reverse=True)
    assert layers[0] - layers[-1] <= 1


def test_one_stage_takes_a_checkpoint_without_layers() -> None:
    flat = named("weight", "lm_head.weight")
    assert names(share(flat, stage=(0, 1))) == names(flat)


MOE = named(
    "model.embed_tokens.weight",
    "model.layers.0.mlp.up_proj.weight",
    *(f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight" for layer in (1, 2) for expert in range(7)),
    "model.layers.1.mlp.gate.weight",
    "model.layers.1.mlp.shared_experts.up_proj.weight",
)


def test_experts_go_by_ranges_of_their_numbers_and_the_rest_to_everyone() -> None:
    others = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.gate.weight",
              "model.layers.1.mlp.shared_experts.up_proj.weight"]  # fmt: skip
    for number, mine in enumerate([{0, 1, 2}, {3, 4}, {5, 6}]):
        shared = share(MOE, experts=(number, 3))
        experts = [name for name in names(shared) if ".experts." in name]
        assert experts == [
            f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight" for layer in (1, 2) for expert in sorted(mine)
        ]
        assert [name for name in names(shared) if name not in experts] == others
        assert shared.replicated == ()


@pytest.mark.parametrize("shares", range(1, 8))
def test_the_shares_of_experts_are_all_experts_once(shares: int) -> None:
    read = Counter(name for number in range(shares) for name in names(share(MOE, experts=(number, shares))))
    assert read == {name: 1 if ".experts." in name else shares for name in names(MOE)}


UNEVEN = [(0, 3), (0, 2), (0, 1), (0, 0), (1, 0), (1, 1)]


def test_blocks_with_different_numbers_of_experts_are_shared_each_on_its_own() -> None:
    uneven = named(*(f"layers.{layer}.ffn.experts.{expert}.w1" for layer, expert in UNEVEN))
    assert names(share(uneven, experts=(1, 2))) == [
        "layers.0.ffn.experts.3.w1",
        "layers.0.ffn.experts.2.w1",
        "layers.1.ffn.experts.1.w1",
    ]
    with pytest.raises(UsageError, match=r"3 shares, but layers\.1\.ffn has 2 experts"):
        share(uneven, experts=(0, 3))


def test_a_tensor_of_all_experts_is_whole_in_every_share_and_named() -> None:
    stacked = named("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.router.weight")
    for options in ({"experts": (1, 2)}, {"experts": (1, 2), "stage": (0, 1)}):
        shared = share(stacked, **options)
        assert names(shared) == names(stacked)
        assert shared.replicated == ("model.layers.0.mlp.experts.gate_up_proj",)
    assert set(share(stacked, experts=(1, 2), tp=(0, 2)).replicated) == set(names(stacked))


def test_ranks_stages_and_experts_combine() -> None:
    shared = share(MOE, tp=(1, 2), stage=(1, 2), experts=(2, 7))
    (wanted,) = shared.wanted
    assert wanted.name == "model.layers.2.mlp.experts.2.up_proj.weight"
    assert (wanted.shape, wanted.offset_bytes - wanted.tensor.offset_bytes, wanted.nbytes) == ((4, 8), 64, 64)
    assert shared.replicated == ()
    first = share(MOE, tp=(1, 2), stage=(0, 2), experts=(6, 7))
    assert [(wanted.name, wanted.shape) for wanted in first.wanted] == [
        ("model.embed_tokens.weight", (4, 8)),
        ("model.layers.0.mlp.up_proj.weight", (4, 8)),
        ("model.layers.1.mlp.experts.6.up_proj.weight", (4, 8)),
        ("model.layers.1.mlp.gate.weight", (8, 8)),
        ("model.layers.1.mlp.shared_experts.up_proj.weight", (4, 8)),
    ]
    assert first.replicated == ("model.layers.1.mlp.gate.weight",)


def test_all_devices_together_read_every_expert_and_layer_once() -> None:
    read = Counter(
        place
        for rank in range(2)
        for stage in range(3)
        for number in range(2)
        for wanted in share(MOE, tp=(rank, 2), stage=(stage, 3), experts=(number, 2)).wanted
        for place in places(wanted)
    )
    for _, tensor in MOE:
        copies = 1 if ".experts." in tensor.name else 2 if tensor.name != "model.layers.1.mlp.gate.weight" else 4
        span = range(tensor.offset_bytes, tensor.offset_bytes + tensor.nbytes)
        assert {read[place] for place in span} == {copies}, tensor.name


@pytest.mark.parametrize("option", ["tp", "stage", "experts"])
@pytest.mark.parametrize("ith_of", [(2, 2), (3, 2), (-1, 2), (0, 0), (0, -1), (-2, -1)])
def test_an_impossible_place_is_refused_with_its_numbers(option: str, ith_of: tuple[int, int]) -> None:
    with pytest.raises(UsageError) as refused:
        share(MOE, **{option: ith_of})
    assert refused.value.message == f"{option}={ith_of}: expected (i, n) with 0 <= i < n"


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="8 stages, but the checkpoint has 7 layers"):
        share(STAGED, stage=(0, 8))
    with pytest.raises(UsageError, match="2 stages, but the checkpoint has 0 layers"):
        share(named("weight"), stage=(0, 2))


def test_more_shares_than_experts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"8 shares, but model\.layers\.1\.mlp has 7 experts"):
        share(MOE, experts=(0, 8))
    with pytest.raises(UsageError, match="2 shares, but the checkpoint has 0 experts"):
        share(STAGED, experts=(0, 2))
