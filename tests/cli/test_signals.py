"""SIGINT and SIGTERM in the real program: stopped between chunks, nothing left behind, also when blocked, also as
process 1.

What makes "the middle of a job" long enough to be met is a checkpoint of holes: gigabytes to read, none on the disk.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldctl.cli import signals
from tests.cli.process import clean_environment

GIB = 1 << 30
PATIENCE_SECONDS = 30.0
SIGNALS = [signal.SIGINT, signal.SIGTERM]
COMMANDS = ["repack", "verify", "prewarm"]


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A valid file of 3 GiB without any data. Its tensors are BOOL, whose values verify looks at without digests."""
    path = tmp_path_factory.mktemp("holes") / "model.safetensors"
    tensors = {
        str(n): {"dtype": "BOOL", "shape": [1 << 10, 1 << 20], "data_offsets": [n * GIB, (n + 1) * GIB]}
        for n in range(3)
    }
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 3 * GIB)
    yield path
    path.unlink()


def arguments_of(command: str, source: Path, target: Path) -> list[str]:
    return [command, str(source), *([str(target)] if command == "repack" else []), "--json"]


@contextmanager
def running(*arguments: str, prefix: Sequence[str] = (), **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """`coldctl ARGUMENTS…` with progress as JSON Lines, killed at the end."""
    environment = clean_environment({"COLDCTL_PROGRESS_SECONDS": "0.02", "COLDCTL_LOG_FORMAT": "json"})
    command = [*prefix, sys.executable, "-m", "coldctl", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen(command, env=environment, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.001)


def wait_for_the_middle(process: subprocess.Popen[str]) -> None:
    """Until some bytes are done, and not all."""
    event = next_event(process, lambda event: event.get("done_bytes", 0) > 0)
    assert 0 < event["done_bytes"] < event["total_bytes"]


def next_event(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    assert process.stderr is not None
    for row in process.stderr:
        event: dict[str, Any] = json.loads(row)
        if wanted(event):
            return event
    raise AssertionError("it ended without saying so")


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """The exit code, and the one document on stdout."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    return process.returncode, json.loads(out)


@contextmanager
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody reads, with no room for a byte more."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def test_the_longest_way_out_takes_less_than_two_seconds() -> None:
    assert signals.GRACE_SECONDS + signals.LAST_ACTS_SECONDS < 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_job_stops_between_two_chunks(tmp_path: Path, holes: Path, command: str, number: signal.Signals) -> None:
    with running(*arguments_of(command, holes, tmp_path / "target")) as process:
        wait_for_the_middle(process)
        assert os.listdir(tmp_path) == (["target"] if command == "repack" else [])
        process.send_signal(number)
        code, document = ended(process)
    assert code == 128 + number
    assert document["error"] == {
        "code": "stopped",
        "exit_code": 128 + number,
        "message": f"stopped by {number.name}",
        "hint": None,
    }
    assert os.listdir(tmp_path) == []


def handles_sigterm(process: subprocess.Popen[str]) -> bool:
    for row in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if row.startswith("SigCgt:"):
            return bool(int(row.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_before_the_job_begins_is_not_lost(tmp_path: Path, holes: Path, command: str) -> None:
    with running(*arguments_of(command, holes, tmp_path / "target")) as process:
        wait_until(lambda: handles_sigterm(process), process)
        process.send_signal(signal.SIGTERM)
        code, document = ended(process)
    assert (code, document["error"]["code"]) == (143, "stopped")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_job_that_waits_for_a_reader_of_stderr_is_ended_and_swept(
    tmp_path: Path, holes: Path, number: signal.Signals
) -> None:
    target = tmp_path / "target"
    with full_pipe() as nobody, running("repack", str(holes), str(target), stderr=nobody) as process:
        wait_until(lambda: list(target.glob(".coldctl-*.tmp")), process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 128 + number
    assert os.listdir(tmp_path) == []


def test_a_stderr_that_nobody_reads_does_not_keep_the_second_signal_from_being_seen(
    tmp_path: Path, holes: Path
) -> None:
    target = tmp_path / "target"
    with full_pipe() as nobody, running("repack", str(holes), str(target), stderr=nobody) as process:
        wait_until(lambda: list(target.glob(".coldctl-*.tmp")), process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) in (130, 143)
    assert os.listdir(tmp_path) == []


@contextmanager
def blocked(model: Path, target: Path, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A repack that has done its work and now hangs in one system call: nobody reads its result."""
    with full_pipe() as nobody, running("repack", str(model), str(target), prefix=prefix, stdout=nobody) as process:
        wait_until((target / "model.safetensors").exists, process)
        yield process


@pytest.mark.parametrize("number", SIGNALS)
def test_a_job_that_is_blocked_is_ended_after_the_grace(tmp_path: Path, model: Path, number: signal.Signals) -> None:
    with blocked(model, tmp_path / "target") as process:
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 128 + number
    assert not list((tmp_path / "target").glob(".coldctl-*"))


WRITE = {"x86_64": 1, "aarch64": 64}[platform.machine()]
"""Its number among the system calls."""


def test_the_second_signal_ends_it_at_once(tmp_path: Path, model: Path) -> None:
    with blocked(model, tmp_path / "target") as process:
        syscall = Path(
            f"/proc/{process.pid}/syscall"
        )  # before it waits to write, the first signal ends it in its own time
        wait_until(lambda: syscall.read_text().startswith(f"{WRITE} 0x1 "), process)
        process.send_signal(signal.SIGTERM)
        next_event(process, lambda event: "stopping on SIGTERM" in event["message"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130


AS_PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child"]


def signal_process_1(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the child of `unshare`, which is process 1 in its own namespace."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (numbers,) = [row for row in Path(f"/proc/{child}/status").read_text().splitlines() if row.startswith("NSpid:")]
    assert numbers.split()[-1] == "1"
    os.kill(int(child), number)


@pytest.mark.root
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", SIGNALS)
def test_process_1_stops_between_two_chunks(tmp_path: Path, holes: Path, command: str, number: signal.Signals) -> None:
    with running(*arguments_of(command, holes, tmp_path / "target"), prefix=AS_PROCESS_1) as process:
        wait_for_the_middle(process)
        signal_process_1(process, number)
        code, document = ended(process)
    assert (code, document["error"]["code"]) == (128 + number, "stopped")
    assert os.listdir(tmp_path) == []


@pytest.mark.root
def test_process_1_is_ended_when_it_is_blocked(tmp_path: Path, model: Path) -> None:
    with blocked(model, tmp_path / "target", AS_PROCESS_1) as process:
        signal_process_1(process, signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 143
