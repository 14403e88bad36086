"""Every option reads a variable; the flag wins over it, it wins over the default; a bad value names the variable."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import typer

from coldctl.cli.app import build
from coldctl.cli.invocation import COMMANDS
from tests.cli.process import Run

# A value that is no default, the value that it means, another one for the flag, and one that makes no sense.
VALUES: dict[str, tuple[str, Any, list[str], Any]] = {
    "align": ("every", "every", ["--align", "page"], "page"),
    "order": ("layers", "layers", ["--order", "file"], "file"),
    "bench order": ("layers,name", ("layers", "name"), ["--order", "file"], ("file",)),
    "shard_size": ("2GiB", 2 << 30, ["--shard-size", "3MB"], 3_000_000),
    "loader": ("vllm", "vllm", ["--loader", "sglang"], "sglang"),
    "budget": ("60%", "60%", ["--budget", "none"], "none"),
    "jobs": ("3", 3, ["--jobs", "4"], 4),
    "digests": ("0", False, ["--digests"], True),
    "device": ("cpu", "cpu", ["--device", "cuda:1"], "cuda:1"),
    "mode": ("auto,map", ("auto", "map"), ["--mode", "ring"], ("ring",)),
    "streams": ("1, 4", (1, 4), ["--streams", "2"], (2,)),
    "chunk": ("1MiB,8MiB", (1 << 20, 8 << 20), ["--chunk", "64MiB"], (64 << 20,)),
    "rounds": ("15", 15, ["--rounds", "2"], 2),
    "cache": ("warm", ("warm",), ["--cache", "cold,warm"], ("cold", "warm")),
    "compare": ("safetensors", ("safetensors",), ["--compare", "runai,torch"], ("runai", "torch")),
    "first_layers": ("2", 2, ["--first-layers", "3"], 3),
    "memory_fraction": ("50%", 0.5, ["--memory-fraction", "0.25"], 0.25),
    "max_split_size": ("128MiB", 128 << 20, ["--max-split-size", "64MiB"], 64 << 20),
    "trace": ("a.json", "a.json", ["--trace", "b.json"], "b.json"),
    "report": ("a.html", "a.html", ["--report", "b.html"], "b.html"),
    "baseline": ("a.json", "a.json", ["--baseline", "b.json"], "b.json"),
    "max_regression": ("20%", 0.2, ["--max-regression", "0.3"], 0.3),
    "for_": ("coldctl", "coldctl", ["--for", "deepseek"], "deepseek"),
    "format": ("e5m2", "e5m2", ["--format", "e4m3"], "e4m3"),
    "tensors": ("lm_head", "lm_head", ["--tensors", "embed"], "embed"),
    "max_error": ("0.1", 0.1, ["--max-error", "0.2"], 0.2),
    "fp8 report": ("1", True, ["--report"], True),
}
FLAGS = ("force", "dry_run", "json", "quiet", "strict", "all_or_nothing", "sweep", "verify", "allow_nonfinite")
# Names of files, and what the job knows best.
TAKE_ANY_TEXT = ("loader", "budget", "json", "device", "mode", "compare", "trace", "report", "baseline", "tensors")

GROUP: Any = typer.main.get_command(build())
OPTIONS = [
    (command, option.name)
    for command in COMMANDS
    for option in GROUP.commands[command].params
    if option.param_type_name == "option"
]


def parse(command: str, *options: str) -> dict[str, Any]:
    parser = GROUP.commands[command]
    paths = ["path"] * sum(parameter.param_type_name == "argument" for parameter in parser.params)
    parsed: dict[str, Any] = parser.make_context(command, [*paths, *options]).params
    return parsed


def variable_of(command: str, option: str) -> str:
    return f"COLDCTL_{command}_{option}".rstrip("_").upper()  # `for` is no name that a parameter can have


def values_of(command: str, option: str) -> tuple[str, Any, list[str], Any]:
    if option in FLAGS:
        return "1", True, [], True
    return VALUES.get(f"{command} {option}") or VALUES[option]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COLDCTL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_variable_sets_the_option(monkeypatch: pytest.MonkeyPatch, command: str, option: str) -> None:
    text, meaning, _, _ = values_of(command, option)
    assert parse(command)[option] != meaning
    monkeypatch.setenv(variable_of(command, option), text)
    assert parse(command)[option] == meaning


@pytest.mark.parametrize(("command", "option"), [pair for pair in OPTIONS if pair[1] in VALUES])
def test_the_flag_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch, command: str, option: str) -> None:
    text, _, flag, meaning = values_of(command, option)
    monkeypatch.setenv(variable_of(command, option), text)
    assert parse(command, *flag)[option] == meaning


@pytest.mark.parametrize(("command", "option"), [pair for pair in OPTIONS if pair[1] in FLAGS])
def test_a_flag_wins_over_a_variable_that_says_no(monkeypatch: pytest.MonkeyPatch, command: str, option: str) -> None:
    monkeypatch.setenv(variable_of(command, option), "0")
    assert parse(command)[option] is False
    assert parse(command, "--" + option.replace("_", "-"))[option] is True


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, command: str, option: str) -> None:
    expected = parse(command)[option]
    monkeypatch.setenv(variable_of(command, option), "")
    assert parse(command)[option] == expected


@pytest.mark.parametrize(
    "variable",
    [
        *(variable_of(command, option) for command, option in OPTIONS if option not in TAKE_ANY_TEXT),
        "COLDCTL_DEBUG",
        "COLDCTL_PROGRESS_SECONDS",
        "COLDCTL_LOG_FORMAT",
        "COLDCTL_NATIVE",
    ],
)
def test_a_bad_value_exits_with_2_and_names_the_variable(coldctl: Run, variable: str) -> None:
    command = next((name for name in COMMANDS if name.upper() == variable.split("_")[1]), "status")
    paths = ["source", "target"] if command == "repack" else ["path"]
    done = coldctl(command, *paths, "--json", environment={variable: "8G?"})
    assert done.returncode == 2
    assert variable in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "usage"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_value_of_the_json_variable_is_told_as_text(coldctl: Run, command: str) -> None:
    paths = ["source", "target"] if command == "repack" else ["path"]
    done = coldctl(command, *paths, environment={f"COLDCTL_{command.upper()}_JSON": "maybe"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"COLDCTL_{command.upper()}_JSON" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e30", "ten"])
def test_progress_seconds_must_be_a_time(coldctl: Run, seconds: str) -> None:
    done = coldctl("status", "path", environment={"COLDCTL_PROGRESS_SECONDS": seconds})
    assert done.returncode == 2
    assert "COLDCTL_PROGRESS_SECONDS" in done.stderr


def test_a_budget_that_the_job_refuses_names_its_variable_too(coldctl: Run, model: os.PathLike[str]) -> None:
    done = coldctl("prewarm", os.fspath(model), environment={"COLDCTL_PREWARM_BUDGET": "8G"})
    assert done.returncode == 2
    assert "8GiB" in done.stderr
    assert "COLDCTL_PREWARM_BUDGET" in done.stderr
