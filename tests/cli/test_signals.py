"""SIGINT and SIGTERM: stopped between chunks, nothing left behind, also when blocked, also as process 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coldctl.cli import signals
from tests.cli.process import clean_environment

# A job that stages a file, says so, and then goes on for ever: in chunks, or in one system call that never returns.
PROGRAM = """
import os, sys, time
from coldctl.cli import signals
signals.GRACE_SECONDS = float(sys.argv[3])
stop = signals.install()
from coldctl.cli.console import Console
from coldctl.cli.invocation import Invocation
from coldctl.loader.atomic import Staging
console = Console(Invocation("repack", json=True), stop)
folder, blocked = sys.argv[1], sys.argv[2] == "blocked"
try:
    with console.events(json=True, quiet=False) as events, Staging(folder) as staging:
        os.close(staging.create("weights"))
        reading, _ = os.pipe()
        os.write(1, b"%d\\n" % os.getpid())
        while not blocked:
            events.raise_if_stopped()
            time.sleep(0.01)
        os.read(reading, 1)
except BaseException as error:
    sys.exit(console.fail(error))
"""

FOREVER = "1000"


@contextmanager
def job(folder: Path, kind: str, grace: str, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    command = [*prefix, sys.executable, "-c", PROGRAM, str(folder), kind, grace]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=clean_environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def document(process: subprocess.Popen[str]) -> dict[str, dict[str, object]]:
    assert process.stdout is not None
    parsed: dict[str, dict[str, object]] = json.loads(process.stdout.read())
    return parsed


def test_the_longest_way_out_takes_less_than_two_seconds() -> None:
    assert signals.GRACE_SECONDS + signals.LAST_ACTS_SECONDS < 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_stops_between_two_chunks(tmp_path: Path, number: signal.Signals) -> None:
    with job(tmp_path, "chunks", FOREVER) as process:
        first_line(process)
        assert len(os.listdir(tmp_path)) == 1
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
        assert document(process)["error"] == {
            "code": "stopped",
            "exit_code": 128 + number,
            "message": f"stopped by signal {number:d}",
            "hint": None,
        }
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_blocked_is_ended_after_the_grace(tmp_path: Path, number: signal.Signals) -> None:
    with job(tmp_path, "blocked", "0.1") as process:
        first_line(process)
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
        assert document(process)["error"]["exit_code"] == 128 + number
    assert os.listdir(tmp_path) == []


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with job(tmp_path, "blocked", FOREVER) as process:
        first_line(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "stopping on SIGTERM" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert os.listdir(tmp_path) == []


def test_a_stderr_that_nobody_reads_does_not_keep_the_second_signal_from_being_seen(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "blocked", FOREVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=clean_environment(), stdout=pipe, stderr=writing, text=True) as process:
        first_line(process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (130, 143)
    os.close(reading)
    os.close(writing)
    assert os.listdir(tmp_path) == []


@pytest.mark.root
@pytest.mark.parametrize("kind", ["chunks", "blocked"])
def test_process_1_stops_too(tmp_path: Path, kind: str) -> None:
    with job(tmp_path, kind, "0.1", prefix=["unshare", "--pid", "--fork", "--kill-child"]) as process:
        assert first_line(process) == "1"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.wait(timeout=30) == 143
    assert os.listdir(tmp_path) == []


def test_a_signal_before_the_job_begins_is_not_lost(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from coldctl.cli import main, run
begin = run.run
def run_after_a_signal(arguments, stop):
    os.kill(os.getpid(), signal.SIGTERM)
    while not stop.asked:
        pass
    return begin(arguments, stop)
run.run = run_after_a_signal
sys.exit(main.main())
"""
    command = [sys.executable, "-c", program, "repack", "/nowhere", str(tmp_path / "out")]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 143
    assert "stopped by signal 15" in done.stderr
