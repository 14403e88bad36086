"""The real program, stopped or killed in the middle of a repack.

A sitecustomize module on PYTHONPATH makes writes slow, or hang, so that "the middle" is long enough to be met.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldctl.jobs.fp8 import Fp8Options, convert_fp8
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from tests.cli.process import ROOT, clean_environment
from tests.fp8 import some_rows, tensor, write_model
from tests.tiny import contents, made, read_folder, snapshot, without_places, write_sharded

MIB = 1 << 20
PATIENCE_SECONDS = 20.0
# The promise is 2 s; the rest is for machines that have other things to do.
LIMIT_SECONDS = 2.0 + 3.0

SLOW = """
import os, time
real = os.pwrite
def pwrite(fd, data, offset):
    written = real(fd, data, offset)
    time.sleep({seconds})
    return written
os.pwrite = pwrite
"""

TENSORS = [{f"{shard}.{n}": made("U8", MIB, seed=n) for n in range(8)} for shard in range(2)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_sharded(tmp_path / "source", TENSORS)
    return tmp_path / "source"


@contextmanager
def repacking(
    source: Path, target: Path, seconds: float, *options: str, command: str = "repack"
) -> Iterator[subprocess.Popen[str]]:
    """A repack, or another command that writes as it does, whose every write takes `seconds`, after it has begun to
    write."""
    customs = source.parent / "customs"
    customs.mkdir(exist_ok=True)
    (customs / "sitecustomize.py").write_text(SLOW.format(seconds=seconds))
    environment = clean_environment({"PYTHONPATH": f"{customs}{os.pathsep}{ROOT}"})
    program = [sys.executable, "-m", "coldctl", command, str(source), str(target), *options]
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            give_up = time.monotonic() + PATIENCE_SECONDS
            while not any(target.glob(".coldctl-*.tmp")):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < give_up
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """Send the signal and hold the program to its promise."""
    process.send_signal(number)
    return process.communicate(timeout=LIMIT_SECONDS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_two_seconds_and_leaves_nothing(
    source: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    before = snapshot(source)
    with repacking(source, tmp_path / "new" / "target", 0.2) as process:
        out, err = stop(process, number)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert not (tmp_path / "new").exists()
    assert snapshot(source) == before


def test_a_write_that_hangs_does_not_hold_it_up(source: Path, tmp_path: Path) -> None:
    with repacking(source, tmp_path / "target", 1000) as process:
        out, err = stop(process, signal.SIGTERM)
    assert process.returncode == 143
    assert out == ""
    assert "Traceback" not in err
    assert not [*tmp_path.glob("target/*"), *tmp_path.glob("target/.*")]


def test_with_json_the_one_document_tells_of_the_signal(source: Path, tmp_path: Path) -> None:
    with repacking(source, tmp_path / "target", 0.2, "--json") as process:
        out, _ = stop(process, signal.SIGTERM)
    document = json.loads(out)
    assert document["error"]["exit_code"] == process.returncode == 143
    assert document["error"]["code"] == "stopped"


def test_an_old_checkpoint_survives_a_signal(source: Path, tmp_path: Path) -> None:
    write_sharded(tmp_path / "old", [{"old": made("U8", 99)}])
    repack(RepackOptions(str(tmp_path / "old"), str(tmp_path / "target")))
    before = contents(tmp_path / "target")
    with repacking(source, tmp_path / "target", 0.2, "--force") as process:
        stop(process, signal.SIGTERM)
    assert contents(tmp_path / "target") == before


def test_a_killed_repack_leaves_no_final_names_and_the_next_one_sweeps(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with repacking(source, target, 0.2) as process:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    left = list(target.iterdir())
    assert left
    assert all(path.name.startswith(".coldctl-") for path in left)
    repack(RepackOptions(str(source), str(target)))
    assert not list(target.glob(".coldctl-*"))
    assert without_places(read_folder(target)) == {n: t for shard in TENSORS for n, t in shard.items()}
    assert verify(VerifyOptions(str(target))).errors == []


def test_a_second_repack_into_the_same_folder_is_refused_while_the_first_runs(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with repacking(source, target, 0.2) as process:
        command = [sys.executable, "-m", "coldctl", "repack", str(source), str(target)]
        second = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert second.returncode == 3
        assert "another coldctl is writing to" in second.stderr
        assert process.poll() is None
        assert list(target.glob(".coldctl-*.tmp"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", tensor(some_rows(3000, 512)), tensor(some_rows(3000, 512)))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_fp8_in_two_seconds_and_leaves_nothing(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    before = snapshot(model)
    with repacking(model, tmp_path / "new" / "target", 0.2, command="fp8") as process:
        _, err = stop(process, number)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not (tmp_path / "new").exists()
    assert snapshot(model) == before


def test_a_killed_fp8_leaves_no_final_names_and_the_next_one_sweeps(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with repacking(model, target, 0.2, command="fp8") as process:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    assert all(path.name.startswith(".coldctl-") for path in target.iterdir())
    convert_fp8(Fp8Options(str(model), str(target)))
    convert_fp8(Fp8Options(str(model), str(tmp_path / "other")))
    assert contents(target) == contents(tmp_path / "other")
