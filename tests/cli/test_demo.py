"""scripts/demo, past its set-up, on a checkpoint of one's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.make_checkpoint import make_checkpoint
from tests.filesystems import loop_filesystem, tmpfs

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
MIB = 1 << 20


def demo(checkpoint: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    command = (sys.executable, DEMO, checkpoint)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_shows_every_command_and_ends_with_the_table(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shards = make_checkpoint(source, shape="llama", size_bytes=8 * MIB, shard_bytes=3 * MIB)
    before = {path: path.read_bytes() for path in source.iterdir()}
    done = demo(source, tmp_path / "scratch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    commands = [line.split()[2] for line in lines if line.startswith("$ coldctl ")]
    assert commands == ["evict", "status", "repack", "verify", "evict", "prewarm", "status"]
    assert [line[:24].strip() for line in lines[-6:]] == [
        "",
        "tensors on a page",
        "bytes on a page",
        "extents (ideal)",
        "in memory",
        "from cold to all there",
    ]
    assert len(shards) > 1
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.root
def test_cold_starts_are_measured_alike_on_a_disk() -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        make_checkpoint(filesystem.path / "source", shape="llama", size_bytes=8 * MIB, shard_bytes=1 << 30)
        done = demo(filesystem.path / "source", filesystem.path / "scratch")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"in memory +0(\.\d)? % +100 %", done.stdout.splitlines()[-2])
    assert re.fullmatch(r"from cold to all there +\d+\.\d\d s +\d+\.\d\d s", done.stdout.splitlines()[-1])


@pytest.mark.root
def test_what_cannot_be_cold_is_not_measured() -> None:
    with tmpfs(64 * MIB) as folder:
        make_checkpoint(folder / "source", shape="llama", size_bytes=8 * MIB, shard_bytes=1 << 30)
        done = demo(folder / "source", folder / "scratch")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"from cold to all there +not measured +not measured", done.stdout.splitlines()[-1])


def test_says_which_command_failed(tmp_path: Path) -> None:
    done = demo(tmp_path / "nothing-here", tmp_path / "scratch")
    assert done.returncode == 1
    assert "nothing-here` ended with exit code 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "scratch").iterdir())
