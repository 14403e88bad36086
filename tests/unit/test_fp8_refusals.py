"""fp8 refuses what an engine would load and take for something else; and what it says in config.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import InputError, RefusedError
from coldctl.fp8.conventions import CONVENTIONS
from coldctl.jobs.fp8 import Fp8Options, convert_fp8
from coldctl.results.fp8 import Fp8Result
from tests.fp8 import BLOCK_FP8, EMBED, HEAD, UNTIED, some_rows, tensor, write_model
from tests.tiny import Made, made, write_shard

TIED = {**UNTIED, "tie_word_embeddings": True}
SILENT = {key: value for key, value in UNTIED.items() if key != "tie_word_embeddings"}
WITHOUT_DTYPE = {key: value for key, value in UNTIED.items() if key != "dtype"}
DEEPSEEK = {**UNTIED, "quantization_config": BLOCK_FP8}
GPTQ = {"quant_method": "gptq", "bits": 4}


def refuse(
    tmp_path: Path, config: Any, convention: Any, *, head: bool = True, shape: Any = (256, 128), **options: Any
) -> str:
    embed = tensor(some_rows(*shape))
    source = write_model(tmp_path / "source", embed, embed if head else None, config=config)
    for report in (True, False):
        with pytest.raises(RefusedError) as caught:
            convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), convention, report=report, **options))
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert not (tmp_path / "target").exists()
    return caught.value.message


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(
    "config",
    [TIED, SILENT, {**UNTIED, "a": {"b": {"tie_word_embeddings": True}}}, {**SILENT, "text_config": {}}],
)
def test_compressed_tensors_wants_to_be_told_that_nothing_is_tied(tmp_path: Path, config: Any, head: bool) -> None:
    assert "two weights (tie_word_embeddings is not false)" in refuse(tmp_path, config, "compressed-tensors", head=head)


@pytest.mark.parametrize("convention", ["raw", "compressed-tensors", "coldctl"])
@pytest.mark.parametrize(
    "config",
    [
        {**UNTIED, "quantization_config": GPTQ},
        {**UNTIED, "compression_config": {"quant_method": "compressed-tensors"}},
        {**UNTIED, "text_config": {"tie_word_embeddings": False, "quantization_config": GPTQ}},
        {**UNTIED, "quantization_config": "fp8"},
        DEEPSEEK,
    ],
)
def test_a_source_that_is_quantised_already_is_refused(tmp_path: Path, config: Any, convention: Any) -> None:
    assert "the source is quantised already: config.json has a quantization_config" in refuse(
        tmp_path, config, convention
    )


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json"])
def test_so_is_one_that_says_it_in_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / name).write_text("{}")
    assert f"the source is quantised already: it has a {name}" in refuse(tmp_path, UNTIED, "raw")


def test_a_quantization_config_of_null_is_none(tmp_path: Path) -> None:
    config = {**UNTIED, "quantization_config": None}
    source = write_model(tmp_path / "source", tensor(some_rows(30, 64)), config=config)
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))
    assert json.loads((tmp_path / "target" / "config.json").read_text())["quantization_config"]["fmt"] == "e4m3"


@pytest.mark.parametrize(
    "quantised",
    [
        None,
        GPTQ,
        {**BLOCK_FP8, "weight_block_size": [64, 64]},
        {**BLOCK_FP8, "weight_block_size": None},
        {**BLOCK_FP8, "fmt": "e5m2"},
        {**BLOCK_FP8, "scale_fmt": "ue8m0"},
    ],
)
def test_deepseek_extends_block_fp8_and_nothing_else(tmp_path: Path, quantised: Any) -> None:
    message = refuse(tmp_path, {**UNTIED, "quantization_config": quantised}, "deepseek")
    assert "deepseek extends a checkpoint whose config.json has block FP8 already" in message


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_deepseek_leaves_alone_what_the_config_keeps_out(tmp_path: Path, key: str) -> None:
    config = {**UNTIED, "quantization_config": {**BLOCK_FP8, key: ["lm_head"]}}
    assert "keeps lm_head out of FP8" in refuse(tmp_path, config, "deepseek")


def test_deepseek_takes_whole_blocks_only(tmp_path: Path) -> None:
    # 192 rows have 2 scales, and a reader that divides would give each 96 rows.
    assert "is no whole number of blocks" in refuse(tmp_path, DEEPSEEK, "deepseek", shape=(192, 128))


@pytest.mark.parametrize("convention", ["compressed-tensors", "coldctl", "deepseek"])
def test_a_scale_without_a_config_that_names_it_is_refused(tmp_path: Path, convention: Any) -> None:
    assert f"{convention} needs a config.json that names the scales" in refuse(tmp_path, None, convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", "[" * 100_000])
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, convention: Any, text: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(text)
    assert "config.json says nothing, or cannot be read as a JSON object" in refuse(tmp_path, None, convention)


@pytest.mark.parametrize("depth", [300, 600, 900, 940, 960, 980, 990, 2000, 20_000])
def test_however_deep_a_config_is_nested_it_is_written_again_or_refused(tmp_path: Path, depth: int) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(30, 64)))
    nested = '{"a":' * depth + "1" + "}" * depth
    (source / "config.json").write_text(f'{{"dtype": "bfloat16", "deep": {nested}}}')
    try:
        convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))
    except (InputError, RefusedError):
        assert not (tmp_path / "target").exists()
    else:
        new = (tmp_path / "target" / "config.json").read_text()
        assert new.count('"a": ') == depth


def test_a_single_file_is_judged_by_the_config_beside_it(tmp_path: Path) -> None:
    config = {**UNTIED, "quantization_config": GPTQ}
    source = write_model(tmp_path / "source", tensor(some_rows(30, 64)), config=config, sharded=False)
    with pytest.raises(RefusedError, match="the source is quantised already"):
        convert_fp8(Fp8Options(str(source / "model.safetensors"), str(tmp_path / "target")))


@pytest.mark.parametrize("convention", ["compressed-tensors", "coldctl", "deepseek"])
def test_a_single_file_has_no_config_beside_it(tmp_path: Path, convention: Any) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(128, 128)), config=DEEPSEEK, sharded=False)
    with pytest.raises(RefusedError, match=f"{convention} needs a config.json that names the scales"):
        convert_fp8(Fp8Options(str(source / "model.safetensors"), str(tmp_path / "target"), convention))


def test_a_config_that_does_not_come_along_is_as_good_as_none(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(30, 64)))
    (source / "config.json").rename(tmp_path / "elsewhere.json")
    (source / "config.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(RefusedError, match=r"coldctl needs config\.json, and that of the source does not come along"):
        convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))


@pytest.mark.parametrize("convention", ["raw", "compressed-tensors"])
@pytest.mark.parametrize("dtype", [None, "int8", 7])
def test_without_a_dtype_in_the_config_readers_would_take_fp8_for_it(
    tmp_path: Path, convention: Any, dtype: Any
) -> None:
    assert "config.json names no dtype" in refuse(tmp_path, {**WITHOUT_DTYPE, "torch_dtype": dtype}, convention)


@pytest.mark.parametrize(("convention", "config"), [("compressed-tensors", UNTIED), ("deepseek", DEEPSEEK)])
def test_e5m2_is_refused_where_the_convention_has_none(tmp_path: Path, convention: Any, config: Any) -> None:
    assert refuse(tmp_path, config, convention, format="e5m2") == f"{convention} knows no e5m2"


def test_a_scale_whose_name_is_taken_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "source" / "model.safetensors",
                {EMBED: tensor(some_rows(30, 64)), EMBED + "_scale": made("F32", 1)})  # fmt: skip
    (tmp_path / "source" / "config.json").write_text(json.dumps(UNTIED))
    with pytest.raises(RefusedError, match=f"there is a tensor {EMBED}_scale already"):
        convert_fp8(Fp8Options(str(tmp_path / "source"), str(tmp_path / "target"), "coldctl"))


def test_compressed_tensors_can_name_weights_of_modules_only(tmp_path: Path) -> None:
    write_shard(tmp_path / "source" / "model.safetensors", {"table": tensor(some_rows(30, 64))})
    (tmp_path / "source" / "config.json").write_text(json.dumps(UNTIED))
    with pytest.raises(RefusedError, match="tensor table is no weight of a module"):
        convert_fp8(Fp8Options(str(tmp_path / "source"), str(tmp_path / "target"), "compressed-tensors", tensors="t"))


def converted(tmp_path: Path, stored: dict[str, Made], convention: Any, **options: Any) -> Fp8Result:
    write_shard(tmp_path / "source" / "model.safetensors", stored)
    (tmp_path / "source" / "config.json").write_text(json.dumps(UNTIED))
    return convert_fp8(Fp8Options(str(tmp_path / "source"), str(tmp_path / "target"), convention, **options))


def targets_in(folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text())
    targets: list[str] = config["quantization_config"]["config_groups"]["group_0"]["targets"]
    assert all(target.startswith("re:") for target in targets)
    return [target.removeprefix("re:") for target in targets]


def test_targets_match_the_modules_that_were_quantised_under_any_prefix_and_no_others(tmp_path: Path) -> None:
    embed = tensor(some_rows(30, 64))
    others = ["model.layers.61.embed_tokens", "vision.embed", "model.layers.61.shared_head.head", "my_lm_head"]
    tensors = {EMBED: embed, HEAD: embed, **{f"{name}.weight": made("BF16", 4, 4) for name in others}}
    converted(tmp_path, tensors, "compressed-tensors")
    patterns = [re.compile(pattern) for pattern in targets_in(tmp_path / "target")]
    assert len(patterns) == 2
    for name in ("model.embed_tokens", "lm_head", "thinker.model.embed_tokens", "thinker.lm_head"):
        assert sum(bool(pattern.match(name)) for pattern in patterns) == 1, name
    for name in [*others, "model.embed_tokens.more", "model.norm"]:
        assert not any(pattern.match(name) for pattern in patterns), name


def test_a_usual_module_is_found_where_a_reader_loads_the_model_without_its_head(tmp_path: Path) -> None:
    converted(tmp_path, {EMBED: tensor(some_rows(30, 64))}, "compressed-tensors")
    (pattern,) = targets_in(tmp_path / "target")
    assert re.match(pattern, "embed_tokens")
    assert re.match(pattern, "model.embed_tokens")


def test_the_new_config_keeps_all_that_the_old_one_says_in_its_order(tmp_path: Path) -> None:
    config = {"z": 1e-06, "a": "ü", **UNTIED, "list": [1, None, {"b": True}]}
    source = write_model(tmp_path / "source", tensor(some_rows(30, 64)), config=config)
    convert_fp8(Fp8Options(str(source), str(tmp_path / "target"), "coldctl"))
    new = json.loads((tmp_path / "target" / "config.json").read_text())
    assert list(new) == [*config, "quantization_config"]
    assert {key: new[key] for key in config} == config


def engines(result: Fp8Result) -> dict[str, str]:
    return {each.engine: each.verdict for each in result.engines}


def test_the_verdict_on_an_engine_is_the_worst_of_those_on_each_tensor(tmp_path: Path) -> None:
    both = {
        EMBED: tensor(some_rows(30, 64)),
        HEAD: tensor(some_rows(30, 64)),
        "x.up_proj.weight": tensor(some_rows(8, 64)),
    }
    ct = "compressed-tensors"
    assert engines(converted(tmp_path, both, ct, report=True)) == {
        "transformers": "loads", "vllm": "refuses", "sglang": "wrong"}  # fmt: skip
    assert engines(converted(tmp_path, both, ct, report=True, tensors="lm_head")) == {
        "transformers": "loads", "vllm": "untested", "sglang": "untested"}  # fmt: skip
    assert engines(converted(tmp_path, both, ct, report=True, tensors="up_proj|lm_head")) == {
        "transformers": "untested", "vllm": "untested", "sglang": "untested"}  # fmt: skip
    assert engines(converted(tmp_path, both, "raw", report=True, tensors="up_proj")) == {
        "vllm": "untested", "sglang": "untested", "transformers": "untested"}  # fmt: skip


def test_every_row_of_the_table_names_its_version_and_source() -> None:
    for convention in CONVENTIONS.values():
        for seen in convention.seen:
            assert seen.versions
            assert seen.source
            assert seen.note or seen.verdict != "wrong"
