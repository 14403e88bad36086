"""The exit code, stdout and stderr of every command for every outcome, real or too rare to be had for real."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Run
from tests.cli.terminal import on_a_terminal, visible

KEYS = {
    "repack": {
        "bytes",
        "tensors",
        "files",
        "aligned_tensors",
        "aligned_bytes",
        "fillers",
        "seconds",
        "peak_anon_bytes",
    },
    "verify": {"findings", "files", "tensors", "bytes", "digests_checked", "seconds"},
    "prewarm": {
        *("bytes", "resident_before_bytes", "resident_after_bytes", "read_bytes", "seconds", "reader", "streams"),
        *("budget_bytes", "complete", "failed"),
    },
    "evict": {
        *("bytes", "resident_before_bytes", "resident_after_bytes", "read_bytes", "seconds", "reader", "streams"),
        *("budget_bytes", "complete", "failed"),
    },
    "status": {"bytes", "resident_bytes", "files"},
}


def arguments_of(command: str, model: Path, tmp_path: Path) -> list[str]:
    return [command, str(model), *([str(tmp_path / "out")] if command == "repack" else [])]


@pytest.mark.parametrize("command", KEYS)
def test_a_result_is_text_on_stdout(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path))
    assert done.returncode == 0, done.stderr
    assert str(model) in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", KEYS)
def test_with_json_stdout_is_one_document_with_the_promised_keys(
    coldctl: Run, model: Path, tmp_path: Path, command: str
) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"], document["ok"]) == (f"coldctl.{command}/1", command, True)
    assert document.keys() >= KEYS[command]


@pytest.mark.parametrize("command", KEYS)
def test_json_may_be_asked_for_by_a_variable(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    variables = {f"COLDCTL_{command.upper()}_JSON": "1"}
    done = coldctl(*arguments_of(command, model, tmp_path), environment=variables)
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.parametrize("command", KEYS)
def test_quiet_leaves_stderr_empty(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != ""


@pytest.mark.parametrize("command", KEYS)
def test_quiet_does_not_silence_errors(coldctl: Run, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, tmp_path / "nowhere", tmp_path), "-q")
    assert done.returncode == 4
    assert done.stderr.startswith("coldctl: error: ")


@pytest.mark.parametrize("command", ["repack", "prewarm", "evict"])
def test_a_dry_run_changes_nothing(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_repack_then_verify_finds_a_flipped_bit_and_exits_with_1(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert coldctl("repack", str(model), str(out)).returncode == 0
    assert coldctl("verify", str(out)).returncode == 0
    shard = out / "model.safetensors"
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    text = coldctl("verify", str(out))
    assert text.returncode == 1
    assert "model.safetensors" in text.stdout
    document = json.loads(coldctl("verify", str(out), "--json").stdout)
    assert document["ok"] is False
    assert any(finding["severity"] == "error" for finding in document["findings"])
    assert coldctl("verify", str(out), "--no-digests").returncode == 0


def test_a_target_that_holds_something_is_refused_without_force(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"mine")
    assert coldctl("repack", str(model), str(out)).returncode == 3
    assert (out / "model.safetensors").read_bytes() == b"mine"
    assert coldctl("repack", str(model), str(out), "--force").returncode == 0


WARM = """
import coldctl.jobs.prewarm as job
from coldctl.results import FailedRange, WarmResult
failed = [FailedRange("a", 4096, 4096, "Input/output error")] if {failed} else []
job.prewarm = lambda options, events: WarmResult(
    "p", "ext4", "name", False, 10, 0, 5, "mincore", 0, None, 10, 5, 1.0, 0.1, "populate", 1, 5, "as asked for",
    {complete}, failed)
"""


@pytest.mark.parametrize(
    ("complete", "failed", "flags", "exit_code"),
    [
        (True, False, [], 0),
        (False, False, [], 0),
        (False, False, ["--strict"], 3),
        (True, False, ["--strict"], 0),
        (False, True, [], 3),
        (False, True, ["--strict"], 3),
    ],
)
def test_prewarm_exits_with_3_when_bytes_failed_or_strict_is_not_met(
    coldctl_where: Run, complete: bool, failed: bool, flags: list[str], exit_code: int
) -> None:
    done = coldctl_where(WARM.format(complete=complete, failed=failed), "prewarm", "p", "--json", *flags)
    assert done.returncode == exit_code
    document = json.loads(done.stdout)
    assert (document["complete"], document["ok"]) == (complete, exit_code == 0)


VERIFY = """
import coldctl.jobs.verify as job
from coldctl.results import Finding, VerifyResult
findings = [Finding("header.gap", severity, "a", None, "m", "h") for severity in {severities}]
job.verify = lambda options, events: VerifyResult("p", findings, {unjudged}, 1, 1, 1, 1, 0, None, [], [], 1.0)
"""


@pytest.mark.parametrize(
    ("severities", "unjudged", "exit_code"),
    [
        ([], [], 0),
        (["warning"], [], 0),
        (["error"], [], 1),
        ([], ["a"], 5),
        (["warning"], ["a"], 5),
        (["error"], ["a"], 1),
    ],
)
def test_verify_exits_with_1_for_errors_and_5_for_what_it_could_not_judge(
    coldctl_where: Run, severities: list[str], unjudged: list[str], exit_code: int
) -> None:
    done = coldctl_where(VERIFY.format(severities=severities, unjudged=unjudged), "verify", "p")
    assert done.returncode == exit_code


EVICT = """
import coldctl.jobs.evict as job
from coldctl.results import EvictResult
job.evict = lambda options, events: EvictResult(
    "p", options.dry_run, 10, 10, 5, "mincore", 0, None, 0, 1.0, None, 0, None, False, [], [])
"""


@pytest.mark.parametrize(("flags", "exit_code"), [([], 3), (["--dry-run"], 0)])
def test_evict_exits_with_3_when_pages_stayed(coldctl_where: Run, flags: list[str], exit_code: int) -> None:
    assert coldctl_where(EVICT, "evict", "p", *flags).returncode == exit_code


OPTIONS = """
import coldctl.jobs.{command} as job
def show(options, events):
    print(options)
    raise SystemExit(0)
job.{command} = show
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["repack", "a", "b"],
            {"source": "a", "target": "b", "align": "page", "order": "name", "shard_size_bytes": None, "loader": None},
        ),
        (
            [
                "repack",
                "a",
                "b",
                "--align",
                "every",
                "--shard-size",
                "5GiB",
                "--loader",
                "vllm",
                "--force",
                "--dry-run",
            ],
            {"align": "every", "shard_size_bytes": 5 << 30, "loader": "vllm", "force": True, "dry_run": True},
        ),
        (["verify", "a"], {"path": "a", "digests": True}),
        (["verify", "a", "--no-digests"], {"digests": False}),
        (["prewarm", "a"], {"path": "a", "order": "name", "budget": "auto", "jobs": None, "strict": False}),
        (
            [
                "prewarm",
                "a",
                "--order",
                "attention-first",
                "--budget",
                "60%",
                "--jobs",
                "3",
                "--all-or-nothing",
                "--strict",
            ],
            {"order": "attention-first", "budget": "60%", "jobs": 3, "all_or_nothing": True, "strict": True},
        ),
        (["evict", "a", "--dry-run"], {"path": "a", "dry_run": True}),
        (["status", "a"], {"path": "a"}),
    ],
)
def test_what_is_parsed_reaches_the_job(coldctl_where: Run, arguments: list[str], expected: dict[str, Any]) -> None:
    done = coldctl_where(OPTIONS.format(command=arguments[0]), *arguments)
    assert done.returncode == 0, done.stderr
    for name, value in expected.items():
        assert f"{name}={value!r}" in done.stdout


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_a_result_is_coloured_only_on_a_terminal_that_may_be(
    model: Path, environment: dict[str, str], coloured: bool
) -> None:
    shown, _ = on_a_terminal("-m", "coldctl", "verify", str(model), stream="stdout", environment=environment)
    assert ("\x1b[32mclean\x1b[0m" in shown) == coloured
    assert ("\x1b" in shown) == coloured
    assert visible(shown)[-1] == "clean"


def test_a_real_job_draws_a_bar_on_a_terminal(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert coldctl("repack", str(model), out).returncode == 0
    shown, stdout = on_a_terminal("-m", "coldctl", "verify", out, stream="stderr")
    assert "(100 %)" in visible(shown)[-1]
    assert stdout.splitlines()[-1] == "clean"
