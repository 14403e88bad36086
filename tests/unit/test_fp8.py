"""fp8 through its Python API: the bytes of every convention, the loss, and that the rest stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldctl.errors import RefusedError, UsageError
from coldctl.jobs.fp8 import Fp8Options, convert_fp8
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.results.fp8 import Fp8Result
from tests.fp8 import (
    BLOCK_FP8,
    DTYPES,
    EMBED,
    FP8,
    HEAD,
    UNTIED,
    Floats,
    encoded,
    some_rows,
    tensor,
    values_of,
    write_model,
)
from tests.tiny import Made, contents, made, read_folder, snapshot, without_places, write_shard

MIB = 1 << 20


def run(source: Path, target: Path | None = None, **options: Any) -> Fp8Result:
    return convert_fp8(Fp8Options(str(source), None if target is None else str(target), **options))


def refused(source: Path, target: Path, **options: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        run(source, target, **options)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert not target.exists()
    return caught.value.message


def row_scales(values: Floats, dtype: str = "F32", most: float = 448.0) -> Floats:
    """The next number of the dtype above amax / most, in Python's own arithmetic."""
    scales = []
    for amax in np.abs(values).max(axis=1).tolist():
        scale = np.array(amax / most if amax else 1.0, np.float64).astype(DTYPES[dtype])
        if float(scale) * most < amax:
            scale = (scale.view(f"u{scale.itemsize}") + 1).view(DTYPES[dtype])
        scales.append([float(scale)])
    return np.array(scales, np.float32)


SHAPES = [(33, 64), (1000, 768), (3001, 513), (700, 2500)]
"""From less than a piece of 1 MiB to several, whose ends fall into rows."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sharded", [True, False])
def test_raw_has_the_nearest_fp8_under_the_same_names(
    tmp_path: Path, dtype: str, shape: tuple[int, int], sharded: bool
) -> None:
    embed, head = tensor(some_rows(*shape), dtype), tensor(some_rows(*shape, seed=1), dtype)
    source = write_model(tmp_path / "source", embed, head, sharded=sharded)
    before = snapshot(source)
    result = run(source, tmp_path / "target")
    assert snapshot(source) == before
    old, new = without_places(read_folder(source)), without_places(read_folder(tmp_path / "target"))
    for name in (EMBED, HEAD):
        assert new[name] == ("F8_E4M3", shape, encoded(values_of(old[name])))
    assert {n: t for n, t in new.items() if n not in (EMBED, HEAD)} == {
        n: t for n, t in old.items() if n not in (EMBED, HEAD)
    }
    assert (tmp_path / "target" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert not verify(VerifyOptions(str(tmp_path / "target"))).findings
    assert result.bytes_before - result.bytes_after == 2 * len(embed.data) - 2 * shape[0] * shape[1]
    assert result.bytes_after == sum(len(t.data) for t in new.values())


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_coldctl_has_a_float32_scale_a_row(tmp_path: Path, dtype: str, shape: tuple[int, int], fmt: str) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(*shape), dtype), tensor(some_rows(*shape), dtype))
    run(source, tmp_path / "target", convention="coldctl", format=fmt, max_error=0.1)
    fp8 = f"F8_{fmt.upper()}"
    values = values_of(without_places(read_folder(source))[EMBED])
    scales = row_scales(values, most=FP8[fp8][1])
    new = without_places(read_folder(tmp_path / "target"))
    assert new[EMBED] == (fp8, shape, encoded(values, scales, fp8))
    assert new[EMBED + "_scale"] == ("F32", (shape[0], 1), scales.tobytes())
    assert set(new) == {*read_folder(source), EMBED + "_scale", HEAD + "_scale"}
    assert not verify(VerifyOptions(str(tmp_path / "target"))).findings
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert config.pop("quantization_config") == {
        "quant_method": ["coldctl_fp8"],
        "fmt": fmt,
        "scales": {EMBED: EMBED + "_scale", HEAD: HEAD + "_scale"},
    }
    assert config == UNTIED


@pytest.mark.parametrize(("named", "dtype"), [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")])
def test_compressed_tensors_has_scales_in_the_models_dtype_and_weights_by_those(
    tmp_path: Path, named: str, dtype: str
) -> None:
    values = some_rows(1000, 768)
    config = {**{key: UNTIED[key] for key in UNTIED if key != "dtype"}, "torch_dtype": named}
    source = write_model(tmp_path / "source", tensor(values, "F32"), tensor(values, "F32"), config=config)
    run(source, tmp_path / "target", convention="compressed-tensors")
    scales = row_scales(values, dtype)
    new = without_places(read_folder(tmp_path / "target"))
    assert new[EMBED] == ("F8_E4M3", (1000, 768), encoded(values, scales))
    assert new[EMBED + "_scale"] == (dtype, (1000, 1), scales.astype(DTYPES[dtype]).tobytes())
    assert not verify(VerifyOptions(str(tmp_path / "target"))).findings


def test_deepseek_has_a_float32_scale_for_each_block(tmp_path: Path) -> None:
    values = some_rows(640, 384) * np.logspace(-3, 3, 640, dtype=np.float32)[:, None]
    config = {**UNTIED, "quantization_config": BLOCK_FP8}
    source = write_model(tmp_path / "source", tensor(values), config=config)
    run(source, tmp_path / "target", convention="deepseek", max_error=0.1)
    values = values_of(without_places(read_folder(source))[EMBED])
    blocks = values.reshape(5, 128, 3, 128)
    scales = row_scales(np.abs(blocks).max(axis=(1, 3)).reshape(15, 1)).reshape(5, 3)
    spread = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)
    new = without_places(read_folder(tmp_path / "target"))
    assert new[EMBED] == ("F8_E4M3", (640, 384), encoded(values, spread))
    assert new[EMBED + "_scale_inv"] == ("F32", (5, 3), scales.tobytes())
    assert json.loads((tmp_path / "target" / "config.json").read_text()) == config
    assert not verify(VerifyOptions(str(tmp_path / "target"))).findings


@pytest.mark.parametrize(("name", "fp8"), [("e4m3", "F8_E4M3"), ("e5m2", "F8_E5M2")])
def test_every_bf16_ties_subnormals_and_the_largest_become_what_the_oracle_says(
    tmp_path: Path, name: str, fp8: str
) -> None:
    every = values_of(Made("BF16", (256, 256), np.arange(65536, dtype="<u2").tobytes()))
    source = write_model(tmp_path / "source", tensor(every))
    options: dict[str, Any] = {"format": name, "max_error": 1e9, "allow_nonfinite": True, "tensors": EMBED}
    loss = run(source, report=True, **options).tensors[0]
    assert (loss.nans, loss.infinities) == (2 * 127, 2)
    every[:, 0] = 1  # raw is refused where it flushes rows, and some are of subnormals
    source = write_model(tmp_path / "source", tensor(every))
    run(source, tmp_path / "target", **options)
    found = values_of(without_places(read_folder(tmp_path / "target"))[EMBED])
    wanted = values_of(Made(fp8, (256, 256), encoded(every, fp8=fp8)))
    assert np.array_equal(found, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(wanted))


def test_zero_rows_have_the_scale_1_and_stay_zero(tmp_path: Path) -> None:
    values = some_rows(40, 64)
    values[[0, 7, 39]] = 0
    source = write_model(tmp_path / "source", tensor(values, "F32"))
    result = run(source, tmp_path / "target", convention="coldctl")
    new = without_places(read_folder(tmp_path / "target"))
    assert np.array_equal(np.flatnonzero(values_of(new[EMBED + "_scale"]) == 1), [0, 7, 39])
    assert not values_of(new[EMBED])[[0, 7, 39]].any()
    assert result.tensors[0].flushed_rows == 0


def test_rows_of_subnormals_keep_their_values_by_their_scale(tmp_path: Path) -> None:
    values = some_rows(64, 64)
    values[3] *= np.float32(2.0**-130)
    source = write_model(tmp_path / "source", tensor(values, "F32"))
    result = run(source, tmp_path / "target", convention="coldctl")
    new = without_places(read_folder(tmp_path / "target"))
    scales = row_scales(values)
    assert new[EMBED + "_scale"].data == scales.tobytes()
    assert new[EMBED].data == encoded(values, scales)
    assert result.tensors[0].relative_error < 0.03


def test_the_loss_is_that_of_what_was_written(tmp_path: Path) -> None:
    values = some_rows(3001, 513, std=0.02)
    source = write_model(tmp_path / "source", tensor(values), None)
    result = run(source, tmp_path / "target")
    loss = result.tensors[0]
    old = values_of(without_places(read_folder(source))[EMBED]).astype(np.float64)
    new = values_of(without_places(read_folder(tmp_path / "target"))[EMBED]).astype(np.float64)
    assert loss.relative_error == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=1e-5)
    assert loss.max_error == np.abs(new - old).max()
    assert loss.flushed_share == np.count_nonzero((new == 0) & (old != 0)) / old.size > 0
    assert (loss.saturated_share, loss.nans, loss.infinities) == (0, 0, 0)
    cosines = (old * new).sum(axis=1) / np.linalg.norm(old, axis=1) / np.linalg.norm(new, axis=1)
    assert loss.cosine_distance_mean == pytest.approx(np.mean(1 - cosines), rel=1e-4)
    assert [row.row for row in loss.worst_rows] == np.argsort(cosines)[:5].tolist()
    assert loss.worst_rows[0].cosine_distance == loss.cosine_distance_max == pytest.approx(1 - cosines.min(), rel=1e-4)


def test_saturated_values_are_counted(tmp_path: Path) -> None:
    values = some_rows(10, 100)
    values[2, :7] = 1000
    values[3, 0] = 448
    result = run(write_model(tmp_path / "source", tensor(values)), report=True)
    assert result.tensors[0].saturated_share == 7 / 1000


def test_infinity_and_nan_are_refused_and_by_request_saturate_and_stay(tmp_path: Path) -> None:
    values = some_rows(10, 100)
    values[1, :3], values[1, 3], values[2, 0] = np.inf, -np.inf, np.nan
    source = write_model(tmp_path / "source", tensor(values, "F32"))
    message = refused(source, tmp_path / "target", convention="coldctl")
    assert f"tensor {EMBED}: 1 values are NaN and 4 infinite" in message
    result = run(source, tmp_path / "target", convention="coldctl", allow_nonfinite=True)
    loss = result.tensors[0]
    assert (loss.nans, loss.infinities, loss.saturated_share) == (1, 4, 4 / 1000)
    assert loss.relative_error < 0.03
    new = without_places(read_folder(tmp_path / "target"))
    finite = np.where(np.isfinite(values), values, 0)
    assert new[EMBED + "_scale"].data == row_scales(finite).tobytes()
    codes = values_of(new[EMBED])
    assert codes[1, :4].tolist() == [448, 448, 448, -448]
    assert np.isnan(codes[2, 0])
    assert np.isfinite(np.delete(codes.reshape(-1), 200)).all()


@pytest.mark.parametrize(("convention", "limit"), [("raw", "0.035"), ("coldctl", "0.04")])
def test_more_loss_than_allowed_is_refused_by_name_with_the_figure(tmp_path: Path, convention: Any, limit: str) -> None:
    # 17/16 is the middle between 1 and 18/16, and 1.75 / 448 a power of two.
    values = np.full((8, 64), 17 / 16, np.float32)
    values[:, 0] = 1.75
    error = (63 * (1 / 16) ** 2 / (63 * (17 / 16) ** 2 + 1.75**2)) ** 0.5
    source = write_model(tmp_path / "source", tensor(values))
    message = refused(source, tmp_path / "target", convention=convention)
    assert message == f"tensor {EMBED}: its relative error would be {error:.4f}, and {limit} is allowed"
    refused(source, tmp_path / "target", convention=convention, max_error=error * 0.999)
    run(source, tmp_path / "target", convention=convention, max_error=error * 1.001)


def test_raw_is_refused_where_whole_rows_would_be_zero(tmp_path: Path) -> None:
    values = some_rows(100, 64)
    values[[5, 17]] = 2.0**-11
    source = write_model(tmp_path / "source", tensor(values))
    assert f"tensor {EMBED}: 2 of its rows would become zero, for want of a scale" in refused(
        source, tmp_path / "target"
    )
    assert run(source, tmp_path / "target", convention="coldctl").tensors[0].flushed_rows == 0


def test_a_report_says_what_speaks_against_it_and_writes_nothing(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(100, 64, std=0.001)))
    before = contents(tmp_path)
    result = run(source, report=True)
    assert contents(tmp_path) == before
    assert (result.target, result.written) == (None, None)
    assert any("relative error" in reason for reason in result.objections)
    assert run(source, report=True, convention="coldctl").objections == []
    assert run(source, tmp_path / "target", report=True, convention="coldctl").written is None
    assert contents(tmp_path) == before


def test_a_dry_run_measures_and_writes_nothing(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(100, 64)))
    result = run(source, tmp_path / "target", dry_run=True)
    assert result.tensors[0].relative_error > 0.02
    assert result.written is not None
    assert result.written.dry_run
    assert not (tmp_path / "target").exists()


def test_what_gets_no_smaller_is_refused(tmp_path: Path) -> None:
    # A scale of 4 bytes for each pair of values of 2 bytes.
    source = write_model(tmp_path / "source", tensor(some_rows(100, 4)))
    assert "it would not get smaller: 800 bytes before, 800 after" in refused(
        source, tmp_path / "t", convention="coldctl"
    )


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(3001, 513)))
    for name in ("one", "two"):
        run(source, tmp_path / name, convention="coldctl")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("align", ["page", "every"])
@pytest.mark.parametrize("order", ["name", "layers", "file"])
def test_layouts_are_those_of_repack(tmp_path: Path, align: Any, order: Any) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(3001, 512)), tensor(some_rows(3001, 512)))
    result = run(source, tmp_path / "target", convention="coldctl", align=align, order=order)
    repack(RepackOptions(str(tmp_path / "target"), str(tmp_path / "again"), align=align, order="name"))
    stored = read_folder(tmp_path / "target")
    assert result.written is not None
    assert result.written.tensors == len(stored)
    assert result.written.aligned_tensors == sum(t.offset % 4096 == 0 for t in stored.values())
    assert without_places(stored) == without_places(read_folder(tmp_path / "again"))
    if order == "name":
        assert contents(tmp_path / "target") == contents(tmp_path / "again")
    if align == "every":
        assert all(t.offset % 4096 == 0 for t in stored.values())


def test_a_checkpoint_with_fillers_is_converted_without_them(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(100, 64)))
    repack(RepackOptions(str(source), str(tmp_path / "filled"), align="every"))
    run(tmp_path / "filled", tmp_path / "one")
    run(source, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_raw_takes_a_single_file_and_a_folder_without_a_config(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(100, 64)), config=None, sharded=False)
    run(source / "model.safetensors", tmp_path / "one")
    run(source, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_target_in_use_stops_it_before_it_measures(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(100, 64)))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("")
    with pytest.raises(RefusedError, match="is not empty"):
        run(source, tmp_path / "target", max_error=0)
    run(source, tmp_path / "target", force=True)
    assert (tmp_path / "target" / "mine").exists()


def test_rows_that_are_longer_than_any_embeddings_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "source" / "model.safetensors", {"lm_head.weight": made("F32", 1, 8 * MIB + 1)})
    message = refused(tmp_path / "source", tmp_path / "target")
    assert "a row of tensor lm_head.weight has 32.0 MiB" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"convention": "gguf"}, "no such convention: 'gguf'"),
        ({"format": "e3m4"}, "no such format: 'e3m4'"),
        ({"max_error": -0.1}, "not a relative error: -0.1"),
        ({"max_error": float("nan")}, "not a relative error: nan"),
        ({"align": "none"}, "no such alignment: 'none'"),
        ({"order": "size"}, "no such order: 'size'"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(10, 64)))
    with pytest.raises(UsageError, match=reason):
        run(source, tmp_path / "target", **options)


def test_without_a_target_only_a_report_makes_sense(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", tensor(some_rows(10, 64)))
    with pytest.raises(UsageError, match="no target is named"):
        run(source)
