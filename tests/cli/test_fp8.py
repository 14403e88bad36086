"""`coldctl fp8` from the command line: text, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.process import Run
from tests.fp8 import EMBED, HEAD, some_rows, tensor, write_model
from tests.tiny import contents, write_shard


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", tensor(some_rows(300, 64)), tensor(some_rows(300, 64, seed=1)))


def test_it_says_what_was_lost_saved_and_which_engines_load_it(coldctl: Run, source: Path, tmp_path: Path) -> None:
    done = coldctl("fp8", str(source), str(tmp_path / "target"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"converted {source} into {tmp_path / 'target'}: 2 tensors in e4m3 for raw, ")
    assert EMBED in done.stdout
    (engines,) = [line for line in done.stdout.splitlines() if line.startswith("loads in: ")]
    assert "vllm 0.33 (casts on load)" in engines
    assert "model-00001-of-00002.safetensors" in done.stdout
    assert "measuring" in done.stderr
    assert "converting" in done.stderr


def test_with_json_the_promised_keys_are_there(coldctl: Run, source: Path, tmp_path: Path) -> None:
    done = coldctl("fp8", str(source), str(tmp_path / "target"), "--json", "--for", "coldctl")
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"], document["ok"]) == ("coldctl.fp8/1", "fp8", True)
    assert [set(each) >= {"name", "relative_error", "max_error", "flushed_share"} for each in document["tensors"]]
    assert sorted(each["name"] for each in document["tensors"]) == [HEAD, EMBED]
    saved_bytes = 2 * (300 * 64 - 300 * 4)
    assert document["bytes_before"] - document["bytes_after"] == saved_bytes
    assert len(document["written"]["files"]) == 2
    assert {each["engine"]: each["verdict"] for each in document["engines"]}["transformers"] == "refuses"


def test_a_report_needs_no_target_and_writes_nothing(coldctl: Run, source: Path) -> None:
    before = contents(source.parent)
    done = coldctl("fp8", str(source), "--report")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0, f"report: {source}: 2 tensors in e4m3 for raw; nothing was written")  # fmt: skip
    assert contents(source.parent) == before


def test_a_report_with_an_objection_exits_with_1_and_tells_it(coldctl: Run, source: Path) -> None:
    done = coldctl("fp8", str(source), "--report", "--max-error", "0.001")
    assert done.returncode == 1
    assert f"refused: tensor {EMBED}: its relative error would be 0.0" in done.stdout
    document = json.loads(coldctl("fp8", str(source), "--report", "--max-error", "0.001", "--json").stdout)
    assert document["ok"] is False
    assert len(document["objections"]) == 2


def test_a_refusal_exits_with_3_and_writes_nothing(coldctl: Run, source: Path, tmp_path: Path) -> None:
    done = coldctl("fp8", str(source), str(tmp_path / "target"), "--max-error", "0.001", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "refused"
    assert not (tmp_path / "target").exists()


def test_without_a_target_it_is_a_usage_error(coldctl: Run, source: Path) -> None:
    done = coldctl("fp8", str(source))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no target is named" in done.stderr


def test_nan_is_told_with_its_count(coldctl: Run, tmp_path: Path) -> None:
    values = some_rows(300, 64)
    values[7, 7], values[8, :2] = np.nan, np.inf
    write_model(tmp_path / "source", tensor(values))
    done = coldctl("fp8", str(tmp_path / "source"), "--report")
    assert done.returncode == 1
    assert f"refused: tensor {EMBED}: 1 values are NaN and 2 infinite" in done.stdout
    assert coldctl("fp8", str(tmp_path / "source"), "--report", "--allow-nonfinite").returncode == 0


def test_the_compiled_and_the_plain_kernels_write_the_same(coldctl: Run, source: Path, tmp_path: Path) -> None:
    for native in ("off", "auto"):
        done = coldctl("fp8", str(source), str(tmp_path / native), "--for", "coldctl",
                       environment={"COLDCTL_NATIVE": native})  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "off") == contents(tmp_path / "auto")


def test_names_from_a_file_are_escaped(coldctl: Run, tmp_path: Path) -> None:
    name = "model.embed\x1b[31m\ntokens.weight"
    write_shard(tmp_path / "source" / "model.safetensors", {name: tensor(some_rows(30, 64))})
    for options in (["--report"], ["--report", "--max-error", "0"], [str(tmp_path / "target"), "--max-error", "0"]):
        done = coldctl("fp8", str(tmp_path / "source"), *options, "--tensors", "tokens")
        assert r"embed\x1b[31m\ntokens" in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
