"""Standard output that is full, closed, gone, or cannot take more at once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import Run, clean_environment
from tests.tiny import made, write_sharded

CASES = [["status", "MODEL"], ["status", "MODEL", "--json"], ["--help"], ["status", "--help"]]


def filled(arguments: list[str], model: Path) -> list[str]:
    return [str(model) if argument == "MODEL" else argument for argument in arguments]


@pytest.mark.parametrize("arguments", CASES)
def test_a_full_stdout_is_exit_code_6(coldctl: Run, model: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = coldctl(*filled(arguments, model), stdout=full)
    assert done.returncode == 6
    assert done.stderr.startswith("coldctl: error: cannot write standard output: No space left on device\n")
    assert len(done.stderr.splitlines()) == 2


def test_a_full_stdout_does_not_hide_another_error(coldctl: Run) -> None:
    with Path("/dev/full").open("w") as full:
        done = coldctl("status", "/nowhere", "--json", stdout=full)
    assert done.returncode == 4
    assert "/nowhere" in done.stderr


@pytest.mark.parametrize("arguments", CASES)
def test_a_reader_that_has_gone_is_no_error(coldctl: Run, model: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = coldctl(*filled(arguments, model), stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [*CASES, ["--version"]])
def test_a_closed_stdout_is_no_error(coldctl: Run, model: Path, arguments: list[str]) -> None:
    done = coldctl(*filled(arguments, model), prefix=["bash", "-c", 'exec "$@" >&-', "bash"])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_the_job_opens_does_not_become_a_closed_stdout(coldctl: Run, model: Path, tmp_path: Path) -> None:
    command = ["bash", "-c", 'exec "$@" >&- 2>&-', "bash"]
    done = coldctl("repack", str(model), str(tmp_path / "out"), "--json", prefix=command)
    assert done.returncode == 0
    assert coldctl("verify", str(tmp_path / "out")).returncode == 0


def test_a_pipe_that_blocks_gets_the_whole_document(tmp_path: Path) -> None:
    # 60 kB through a pipe of 4 kB whose writing end does not wait, read only once it is full.
    write_sharded(tmp_path, [{"a": made("U8", 1)}])
    strays = [f"{'x' * 180}{n:03}.safetensors" for n in range(300)]
    for name in strays:
        (tmp_path / name).touch()
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    command = [sys.executable, "-m", "coldctl", "status", str(tmp_path), "--json"]
    with subprocess.Popen(command, env=clean_environment(), stdout=writing) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            document = json.loads(pipe.read())
    assert process.returncode == 0
    assert document["ignored"] == strays
