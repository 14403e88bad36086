"""coldctl.fp8.targets: embeddings and head by name and config, or by a pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import RefusedError, UsageError
from coldctl.fp8.targets import find_targets
from coldctl.loader.format.checkpoint import open_checkpoint
from tests.tiny import Made, made, write_shard


def found(folder: Path, *names: str, config: dict[str, Any] | None = None, pattern: str | None = None) -> set[str]:
    write_shard(folder / "model.safetensors", {name: made("BF16", 6, 4) for name in names})
    return {target.name for target in find_targets(open_checkpoint(folder), config or {}, pattern)}


LAYER = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    "names",
    [
        {"model.embed_tokens.weight", "lm_head.weight"},
        {"transformer.wte.weight"},
        {"embeddings.word_embeddings.weight"},
        {"tok_embeddings.weight", "output.weight"},
        {"gpt_neox.embed_in.weight", "embed_out.weight"},
        {"shared.weight", "lm_head.weight"},
    ],
)
def test_the_usual_names_are_known(tmp_path: Path, names: set[str]) -> None:
    others = {"model.norm.bias", "embeddings.position_embeddings.weight", "lm_head.bias", LAYER}
    assert found(tmp_path, *names, *others) == names


def test_the_embedding_of_a_layer_is_left_alone(tmp_path: Path) -> None:
    names = (
        "model.embed_tokens.weight",
        "model.layers.61.embed_tokens.weight",
        "model.layers.61.shared_head.head.weight",
    )
    assert found(tmp_path, *names) == {"model.embed_tokens.weight"}


@pytest.mark.parametrize(
    "config", [{"vocab_size": 6, "hidden_size": 4}, {"text_config": {"vocab_size": 6, "n_embd": 4}}]
)
def test_where_no_name_is_known_the_shape_in_the_config_decides(tmp_path: Path, config: dict[str, Any]) -> None:
    assert found(tmp_path, "words.table.weight", LAYER, config=config) == {"words.table.weight"}


def test_the_shape_in_the_config_counts_for_nothing_beside_a_known_name(tmp_path: Path) -> None:
    config = {"vocab_size": 6, "hidden_size": 4}
    assert found(tmp_path, "words.table.weight", "lm_head.weight", config=config) == {"lm_head.weight"}


def test_a_pattern_is_searched_for_in_names(tmp_path: Path) -> None:
    assert found(tmp_path, "lm_head.weight", LAYER, pattern=r"up_proj") == {LAYER}


def test_nothing_found_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no tensor has the name of an embedding or head"):
        found(tmp_path, LAYER)
    with pytest.raises(RefusedError, match="no tensor has a name that matches 'nobody'"):
        found(tmp_path, LAYER, pattern="nobody")


def test_a_pattern_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a regular expression: '\('"):
        found(tmp_path, LAYER, pattern="(")


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (made("F8_E4M3", 6, 4), r"F8_E4M3 \[6, 4\], is quantised already"),
        (made("I64", 6, 4), "is quantised already, or no weight"),
        (made("BF16", 24), r"BF16 \[24\], cannot become FP8"),
        (Made("F32", (0, 4), b""), r"F32 \[0, 4\], cannot become FP8"),
        (Made("F64", (3, 1), bytes(24)), r"F64 \[3, 1\], cannot become FP8"),
        (made("C64", 6, 4), r"C64 \[6, 4\], cannot become FP8"),
    ],
)
def test_what_cannot_become_fp8_is_refused_by_name(tmp_path: Path, tensor: Made, reason: str) -> None:
    write_shard(tmp_path / "model.safetensors", {"a.weight": tensor})
    with pytest.raises(RefusedError, match=f"tensor a.weight, .*{reason}") as caught:
        find_targets(open_checkpoint(tmp_path), {}, "a")
    assert caught.value.tensor == "a.weight"


def test_an_embedding_that_is_fp8_already_is_refused_without_a_pattern_too(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"lm_head.weight": made("F8_E4M3", 6, 4)})
    with pytest.raises(RefusedError, match="is quantised already"):
        find_targets(open_checkpoint(tmp_path), {}, None)
