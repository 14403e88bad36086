"""What ends a run is told on stderr, by the exit code, and with --json by one document on stdout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Run, run_python

RAISE = """
import errno, coldctl.jobs.status as job
from coldctl import errors
def raising(options, events):
    raise {what}
job.status = raising
"""

KINDS = [
    ("errors.UsageError('no')", 2, "usage"),
    ("errors.RefusedError('no')", 3, "refused"),
    ("errors.UnreadableError('no')", 3, "unreadable"),
    ("errors.InputError('no')", 4, "input"),
    ("errors.FaultError('no', rule='header.gap')", 4, "header.gap"),
    ("errors.ChangedError('no')", 4, "changed"),
    ("errors.EnvironmentLacksError('no')", 5, "environment"),
    ("errors.NoSpaceError('no')", 6, "no-space"),
    ("errors.StoppedError(15)", 143, "stopped"),
    ("errors.ColdctlError('no')", 70, "bug"),
    ("MemoryError", 5, "environment"),
    ("OSError(errno.ENOSPC, 'No space left on device', '/x')", 6, "no-space"),
    ("OSError(errno.EMFILE, 'Too many open files')", 5, "environment"),
    ("ModuleNotFoundError('No module named blake3', name='blake3')", 5, "environment"),
    ("ImportError('cannot import name')", 70, "bug"),
    ("ZeroDivisionError('division by zero')", 70, "bug"),
    ("RecursionError", 70, "bug"),
]


@pytest.mark.parametrize(("what", "exit_code", "code"), KINDS)
def test_every_kind_of_error_has_its_exit_code_and_one_document(
    coldctl_where: Run, what: str, exit_code: int, code: str
) -> None:
    done = coldctl_where(RAISE.format(what=what), "status", "path", "--json")
    assert done.returncode == exit_code
    document = json.loads(done.stdout)
    assert document["schema"] == "coldctl.status/1"
    assert document["command"] == "status"
    assert document["ok"] is False
    assert set(document["error"]) == {"code", "exit_code", "message", "hint"}
    assert (document["error"]["code"], document["error"]["exit_code"]) == (code, exit_code)
    assert "coldctl: error: " in done.stderr


@pytest.mark.parametrize(("what", "exit_code", "code"), KINDS)
def test_only_our_own_bugs_show_a_traceback(coldctl_where: Run, what: str, exit_code: int, code: str) -> None:
    plain = coldctl_where(RAISE.format(what=what), "status", "path")
    debug = coldctl_where(RAISE.format(what=what), "status", "path", environment={"COLDCTL_DEBUG": "1"})
    assert (plain.returncode, plain.stdout) == (debug.returncode, debug.stdout) == (exit_code, "")
    assert ("Traceback" in plain.stderr) == (code == "bug")
    assert "Traceback" in debug.stderr


def test_a_bug_says_so_with_the_version(coldctl_where: Run) -> None:
    done = coldctl_where(RAISE.format(what="ZeroDivisionError('division by zero')"), "status", "path")
    assert "this is a bug of coldctl 0.1.0: ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate", "--json"],
        ["--json"],
        ["verify", "--json"],
        ["verify", "a", "b", "--json"],
        ["verify", "a", "--no-such-option", "--json"],
        ["repack", "a", "b", "--align", "sometimes", "--json"],
        ["repack", "a", "b", "--shard-size", "8G", "--json"],
        ["prewarm", "a", "--json", "--jobs", "0"],
        ["prewarm", "a", "--json", "--jobs"],
    ],
)
def test_a_bad_command_line_exits_with_2_and_one_document(coldctl: Run, arguments: list[str]) -> None:
    done = coldctl(*arguments)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    known = arguments[0] in ("verify", "repack", "prewarm")
    assert document["command"] == (arguments[0] if known else None)
    assert document["schema"] == (f"coldctl.{arguments[0]}/1" if known else "coldctl/1")
    assert document["error"]["exit_code"] == 2
    assert "--help" in document["error"]["hint"]
    assert done.stderr.startswith("coldctl: error: ")


def test_a_bad_command_line_without_json_leaves_stdout_empty(coldctl: Run) -> None:
    done = coldctl("verify", "a", "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")


def test_json_may_come_from_the_variable_when_the_command_line_is_bad(coldctl: Run) -> None:
    done = coldctl("verify", environment={"COLDCTL_VERIFY_JSON": "1"})
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "usage"


def test_a_path_called_json_is_no_request_for_json(coldctl: Run) -> None:
    done = coldctl("status", "--", "--json")
    assert (done.returncode, done.stdout) == (4, "")


def test_what_is_in_the_command_line_is_escaped(coldctl: Run) -> None:
    for arguments in (["\x1b[31mred"], ["status", "\x1b[31mred\nline"], ["status", "x", "--\x1b[31m"]):
        done = coldctl(*arguments)
        assert done.returncode in (2, 4)
        assert "\x1b" not in done.stderr
        assert len(done.stderr.splitlines()) == 2


def test_a_path_that_is_not_utf8_is_told_as_hex(tmp_path: Path) -> None:
    missing = os.fsencode(tmp_path) + b"/\xff\xfe"
    done = run_python("-m", "coldctl", "status", missing, "--json")
    assert done.returncode == 4
    assert r"/\xff\xfe" in json.loads(done.stdout)["error"]["message"]
    assert r"/\xff\xfe" in done.stderr


def test_a_checkpoint_whose_path_is_not_utf8_works(tmp_path: Path, model: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/m\xff"
    os.rename(model, strange)
    done = run_python("-m", "coldctl", "status", strange, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"].endswith(r"/m\xff")
    assert r"/m\xff" in run_python("-m", "coldctl", "status", strange).stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_of_stdout_will_do(coldctl: Run, model: Path, encoding: str) -> None:
    strange = model.rename(model.with_name("modèle-模型"))
    done = coldctl("status", str(strange), environment={"PYTHONIOENCODING": encoding}, encoding=encoding)
    assert done.returncode == 0, done.stderr
    assert ("█" in done.stdout) == (encoding == "utf-8")


def records(stderr: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.splitlines()]


def test_the_log_can_be_json_lines(coldctl: Run) -> None:
    done = coldctl("status", "/nowhere/\x1b", environment={"COLDCTL_LOG_FORMAT": "json"})
    (record,) = records(done.stderr)
    assert done.returncode == record["exit_code"] == 4
    assert (record["level"], record["event"], record["command"], record["code"]) == (
        "error",
        "error",
        "status",
        "input",
    )
    assert record["ts"].endswith("Z")
    assert "\x1b" not in record["message"]


def test_a_bug_is_one_json_line_too(coldctl_where: Run) -> None:
    variables = {"COLDCTL_LOG_FORMAT": "json"}
    done = coldctl_where(RAISE.format(what="ZeroDivisionError"), "status", "path", environment=variables)
    (record,) = records(done.stderr)
    assert "Traceback" in record["traceback"]


def test_a_closed_stderr_changes_nothing(coldctl: Run) -> None:
    command = ["bash", "-c", 'exec "$@" 2>&-', "bash"]
    assert coldctl("status", "/nowhere", prefix=command).returncode == 4


def test_a_full_stderr_changes_nothing(coldctl: Run) -> None:
    with Path("/dev/full").open("w") as full:
        assert coldctl("status", "/nowhere", stderr=full).returncode == 4


def test_nothing_is_read_from_standard_input(coldctl: Run, model: Path) -> None:
    command = ["bash", "-c", 'exec "$@" <&-', "bash"]
    assert coldctl("status", str(model), prefix=command).returncode == 0
    assert coldctl("status", str(model), stdin=subprocess.DEVNULL).returncode == 0
