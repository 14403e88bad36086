"""Variables that nothing reads are noted, and the ones of typer and of completion neither mislead nor crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coldctl.cli.invocation import COMMANDS
from tests.cli.process import Run, run_python


def notes(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("coldctl: note: ")]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("COLDCTL_PREWARM_BUGDET", "COLDCTL_PREWARM_BUDGET"),
        ("COLDCTL_REPACK_SHARDSIZE", "COLDCTL_REPACK_SHARD_SIZE"),
        ("COLDCTL_LOGFORMAT", "COLDCTL_LOG_FORMAT"),
        ("COLDCTL_STATUS_JSN", "COLDCTL_STATUS_JSON"),
    ],
)
def test_a_misspelled_variable_is_noted_with_the_one_that_was_meant(
    coldctl: Run, model: Path, variable: str, meant: str
) -> None:
    done = coldctl("status", str(model), "--json", environment={variable: "1GiB"})
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    (note,) = notes(done.stderr)
    assert f"{variable} (did you mean {meant}?)" in note


def test_a_name_that_is_near_to_none_is_noted_alone(coldctl: Run, model: Path) -> None:
    done = coldctl("status", str(model), environment={"COLDCTL_ZZZ": "1", "COLDCTL_PREWARM_BUGDET": "1"})
    (note,) = notes(done.stderr)
    assert note.endswith("COLDCTL_PREWARM_BUGDET (did you mean COLDCTL_PREWARM_BUDGET?), COLDCTL_ZZZ")


def test_quiet_keeps_the_note_back(coldctl: Run, model: Path) -> None:
    assert notes(coldctl("status", str(model), "-q", environment={"COLDCTL_ZZZ": "1"}).stderr) == []


def test_no_variable_that_something_reads_is_noted(coldctl: Run, model: Path) -> None:
    known = {
        "COLDCTL_DEBUG": "0",
        "COLDCTL_PROGRESS_SECONDS": "5",
        "COLDCTL_LOG_FORMAT": "text",
        "COLDCTL_NATIVE": "auto",
        "COLDCTL_PREWARM_BUDGET": "1GiB",
        "COLDCTL_REPACK_SHARD_SIZE": "1GiB",
        "COLDCTL_VERIFY_DIGESTS": "0",
        "COLDCTL_EVICT_DRY_RUN": "1",
        "COLDCTL_STATUS_QUIET": "0",
    }
    assert notes(coldctl("status", str(model), environment=known).stderr) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_no_variable_makes_help_of_a_command(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    paths = [str(model), str(tmp_path / "out")] if command == "repack" else [str(model)]
    brief = ["--rounds", "1", "--cache", "warm"] if command == "bench" else []
    done = coldctl(command, *paths, *brief, "--json", environment={f"COLDCTL_{command.upper()}_HELP": "1"})
    assert json.loads(done.stdout)["command"] == command
    assert "_HELP" in notes(done.stderr)[0]
    assert "_HELP" not in coldctl(command, "--help").stdout


@pytest.mark.parametrize("request_", ["complete_bash", "nonsense", "source_nosuchshell", "frobnicate_bash"])
def test_a_request_that_no_completion_script_makes_is_a_usage_error(coldctl: Run, request_: str) -> None:
    done = coldctl("verify", "x", "--json", environment={"_COLDCTL_COMPLETE": request_})
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "usage"
    assert "_COLDCTL_COMPLETE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.root
@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_completion_without_a_shell_exits_with_5(tmp_path: Path, option: str) -> None:
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", "-u", "SHELL"]
    done = run_python("-m", "coldctl", option, environment={"HOME": str(tmp_path)}, prefix=alone)
    assert done.returncode == 5
    assert "coldctl: error: no shell" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_usage_names_its_arguments_without_braces(coldctl: Run) -> None:
    assert coldctl("repack", "--help").stdout.startswith("Usage: coldctl repack [OPTIONS] SOURCE TARGET\n")
    assert coldctl("status", "--help").stdout.startswith("Usage: coldctl status [OPTIONS] PATH\n")
    assert "--jobs INTEGER" in coldctl("prewarm", "--help").stdout


def test_the_help_of_loader_lists_the_names(coldctl: Run) -> None:
    text = " ".join(coldctl("repack", "--help").stdout.split())
    for name in ("vllm", "sglang", "transformers", "trtllm", "llama.cpp", "fastsafetensors"):
        assert name in text


def test_the_help_of_verify_says_what_alignment_and_extents_count_for(coldctl: Run) -> None:
    text = " ".join(coldctl("verify", "--help").stdout.split())
    assert "warnings (layout.misaligned, layout.fragmented), which do not change the exit code" in text


@pytest.mark.parametrize("budget", ["nonsense", "8G", "40 zorks"])
def test_a_budget_that_makes_no_sense_is_told_what_would(coldctl: Run, model: Path, budget: str) -> None:
    done = coldctl("prewarm", str(model), "--budget", budget, "--json")
    assert done.returncode == 2
    for example in ("auto", "none", "60%", "40GiB"):
        assert example in json.loads(done.stdout)["error"]["hint"]


def test_a_dry_run_of_evict_says_what_it_would_drop(coldctl: Run, model: Path) -> None:
    done = coldctl("evict", str(model), "--dry-run")
    assert done.returncode == 0
    assert "would drop" in done.stdout or "nothing to drop" in done.stdout
    assert "nothing was evicted" in done.stdout
