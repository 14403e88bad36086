"""Limits of threads, of addresses and of files: the environment lacks something, and that is what coldctl says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Run, run_python

MB = 1_000_000

# The limit of processes does not bind root, and nobody may not look into root's folders.
AS_NOBODY = [
    "setpriv",
    "--reuid=65534",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]


def limited_run(name: str, number: int, *arguments: str, prefix: Sequence[str] = ()) -> Any:
    return run_python("-m", "coldctl", *arguments, "--json", prefix=[*prefix, "prlimit", f"--{name}={number}"])


def error_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The error in the one document, which must say what the exit code says; nothing where there is no error."""
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    error: dict[str, Any] = document.get("error", {})
    assert error.get("exit_code", 0) == done.returncode
    return error


@pytest.mark.root
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("command", ["status", "verify", "prewarm"])
def test_few_threads_are_enough_or_are_told(model: Path, command: str, threads: int) -> None:
    done = limited_run("nproc", threads, command, str(model), prefix=AS_NOBODY)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 5)
    if error := error_of(done):
        assert error["code"] == "environment"
        assert "cannot start a thread" in error["message"]
        assert "ulimit -u" in error["hint"]


@pytest.mark.root
def test_without_a_thread_a_job_that_needs_one_exits_with_5(model: Path) -> None:
    done = limited_run("nproc", 0, "status", str(model), prefix=AS_NOBODY)
    assert (done.returncode, error_of(done)["code"]) == (5, "environment")


@pytest.mark.root
def test_without_a_thread_the_help_is_still_printed() -> None:
    done = run_python("-m", "coldctl", "verify", "--help", prefix=[*AS_NOBODY, "prlimit", "--nproc=0"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.root
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_without_a_thread_a_signal_still_stops_it(number: str) -> None:
    program = f"""
import os, signal, sys
from coldctl.cli import main, run
begin = run.run
def run_after_a_signal(arguments, stop):
    os.kill(os.getpid(), signal.{number})
    return begin(arguments, stop)
run.run = run_after_a_signal
sys.exit(main.main())
"""
    prefix = [*AS_NOBODY, "prlimit", "--nproc=0"]
    done = run_python("-c", program, "status", "/nowhere", "--json", prefix=prefix)
    assert done.returncode == {"SIGINT": 130, "SIGTERM": 143}[number]
    assert error_of(done)["message"] == f"stopped by {number}"


@pytest.mark.parametrize("limit", [60 * MB, 80 * MB, 100 * MB, 120 * MB, 140 * MB, 160 * MB, 180 * MB, 200 * MB])
@pytest.mark.parametrize("command", ["status", "verify"])
def test_few_addresses_are_enough_or_are_told(model: Path, command: str, limit: int) -> None:
    done = limited_run("as", limit, command, str(model))
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 5)
    if error := error_of(done):
        assert error["code"] == "environment"


# Room for all but numpy: coldctl itself is imported before the limit is set.
LITTLE_ROOM = """
import resource, typer
from coldctl.cli import app, run
typer.main.get_command(app.build())
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (48 << 20),) * 2)
"""


@pytest.mark.parametrize("command", ["verify", "repack"])
def test_the_library_that_ends_the_process_is_not_loaded_where_it_would(
    coldctl_where: Run, model: Path, tmp_path: Path, command: str
) -> None:
    target = tmp_path / "out"
    paths = [str(model), str(target)] if command == "repack" else [str(model)]
    done = coldctl_where(LITTLE_ROOM, command, *paths, "--json")
    assert done.returncode == 5
    assert error_of(done)["message"] == "too little address space to load numpy"
    assert "OpenBLAS" not in done.stderr
    assert not target.exists()


def test_openblas_starts_no_threads_of_its_own(model: Path) -> None:
    program = f"""
import sys
sys.argv = ["coldctl", "verify", {str(model)!r}, "--quiet"]
from coldctl.cli.main import main
assert main() == 0
import os
assert "numpy" in sys.modules
print("threads", len(os.listdir("/proc/self/task")))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    # The main thread, and the one that waits for signals.
    assert done.stdout.splitlines()[-1] == "threads 2"


LOAD_ERROR = "ImportError('/x/lib.so: failed to map segment from shared object', name='_lib', path='/x/lib.so')"
RAISE = """
import coldctl.jobs.status as job
def raising(options, events):
    try:
        raise {cause}
    except ImportError as error:
        raise {error} from error
job.status = raising
"""


@pytest.mark.parametrize("error", [LOAD_ERROR, "ImportError('please read this')"])
def test_a_library_that_does_not_load_is_named(coldctl_where: Run, error: str) -> None:
    done = coldctl_where(RAISE.format(cause=LOAD_ERROR, error=error), "status", "path", "--json")
    assert done.returncode == 5
    assert "_lib does not load: /x/lib.so: failed to map" in error_of(done)["message"]


def test_a_module_of_our_own_that_does_not_load_is_a_bug(coldctl_where: Run) -> None:
    ours = "ImportError('cannot import name', name='coldctl.units')"
    done = coldctl_where(RAISE.format(cause=ours, error=ours), "status", "path", "--json")
    assert (done.returncode, error_of(done)["code"]) == (70, "bug")


def test_too_few_files_for_the_pipe_of_signals_are_enough() -> None:
    program = """
import os, resource
from coldctl.cli import signals
lowest = os.dup(0)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
stop = signals.install()
os.kill(os.getpid(), 15)
print(stop.asked)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_current_folder_that_was_deleted_is_named(model: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = run_python("-m", "coldctl", "repack", str(model), "out", "--json", prefix=["bash", "-c", script, str(gone)])
    assert done.returncode == 4
    assert os.fspath(gone) in error_of(done)["message"]
