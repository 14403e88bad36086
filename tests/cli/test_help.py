"""The help of every command: examples, variables, exit status; and what is not imported to print it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from coldctl.cli.app import build
from coldctl.cli.invocation import COMMANDS
from tests.cli.process import Run, run_python


def options_of(command: str) -> list[Any]:
    group: Any = typer.main.get_command(build())
    return [option for option in group.commands[command].params if option.param_type_name == "option"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_leads_with_examples_and_ends_with_the_exit_status(coldctl: Run, command: str) -> None:
    done = coldctl(command, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.index("Examples:") < done.stdout.index("Options:") < done.stdout.index("Exit status:")
    assert f"\n    coldctl {command} " in done.stdout
    codes = re.findall(r"^ {4}(\d+) ", done.stdout[done.stdout.index("Exit status:") :], re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "70", "130", "143"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_of_the_help_is_wider_than_a_terminal(coldctl: Run, command: str) -> None:
    assert max(map(len, coldctl(command, "--help").stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_the_variable_of_every_option(coldctl: Run, command: str) -> None:
    text = " ".join(coldctl(command, "--help").stdout.split())
    for option in options_of(command):
        assert f"env var: COLDCTL_{command.upper()}_{option.name.rstrip('_').upper()}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_quiet_and_speak_json(command: str) -> None:
    assert {"--json", "--quiet"} <= {name for option in options_of(command) for name in option.opts}


def test_without_arguments_the_help_goes_to_stderr_as_a_usage_error(coldctl: Run) -> None:
    done = coldctl()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == coldctl("--help").stdout


def test_github_actions_does_not_colour_the_help_in_a_pipe(coldctl: Run) -> None:
    variables = {"GITHUB_ACTIONS": "1", "FORCE_COLOR": "1"}
    assert "\x1b" not in coldctl("prewarm", "--help", environment=variables).stdout
    assert "\x1b" not in coldctl("prewarm", "--no-such-option", environment=variables).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_imports_neither_torch_nor_numpy_nor_rich(command: str) -> None:
    program = f"""
import sys
sys.argv = ["coldctl", {command!r}, "--help"]
from coldctl.probe import main
assert main() == 0
print(*sorted(name for name in ("torch", "numpy", "rich", "safetensors", "blake3", "msgspec") if name in sys.modules))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""


def test_shell_completion_knows_the_commands(coldctl: Run) -> None:
    variables = {"_COLDCTL_COMPLETE": "complete_bash", "COMP_WORDS": "coldctl ver", "COMP_CWORD": "1"}
    assert coldctl(environment=variables).stdout.split() == ["verify"]
