"""`coldctl --version` answers before typer is imported."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.process import Run, run_python


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["--version", "verify", "nowhere"]])
def test_the_version_is_one_line_on_stdout(coldctl: Run, arguments: list[str]) -> None:
    done = coldctl(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "coldctl 0.1.0\n", "")


def test_it_needs_no_typer() -> None:
    program = """
import sys
before = set(sys.modules)
sys.argv = ["coldctl", "--version"]
from coldctl.probe import main
assert main() == 0
print(sorted(name.partition(".")[0] for name in set(sys.modules) - before))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    imported = set(eval(done.stdout.splitlines()[1]))  # noqa: S307
    assert not imported & {"typer", "rich", "click", "numpy", "torch", "msgspec", "argparse", "importlib"}


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 6), ("/dev/null", 0)])
def test_a_full_stdout_is_told_by_the_exit_code(coldctl: Run, target: str, code: int) -> None:
    with Path(target).open("w") as stdout:
        done = coldctl("--version", stdout=stdout, stderr=subprocess.PIPE)
    assert done.returncode == code
    assert ("cannot write standard output" in done.stderr) == (code == 6)
    assert "Traceback" not in done.stderr
