"""Every benchmark in scripts/bench runs to its end at a small size and writes what it promises; no figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coldctl._native import kernels
from scripts.bench.child import Sample, run, run_watching_memory
from scripts.bench.loads import DiffersError, Loads
from scripts.bench.pairs import interleave
from scripts.make_checkpoint import make_checkpoint
from tests.bench_content import total_of_folder
from tests.filesystems import need
from tests.tiny import read_folder

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def bench(name: str, report: Path, *arguments: str) -> Any:
    """The JSON document of one benchmark; its exit status has to say what its verdicts say."""
    command = (sys.executable, "-m", f"scripts.bench.{name}", "--rounds", "2", "--json", str(report), *arguments)
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert report.exists(), done.stderr
    document = json.loads(report.read_text())
    assert done.returncode == (0 if all(target["met"] for target in document["targets"]) else 1)
    for target in document["targets"]:
        assert f"{'met' if target['met'] else 'MISSED'}: {target['found']}; wanted {target['wanted']}" in done.stdout
    assert document["benchmark"] == name
    assert document["machine"].keys() >= {"cpu", "cores", "memory_bytes", "kernel", "filesystem", "packages", "date"}
    head = subprocess.run(("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert head.startswith(document["machine"]["commit"].removesuffix("-dirty"))
    for samples in document["samples"].values():
        assert len(samples) == document["rounds"] == 2
        assert all(sample["seconds"] > 0 for sample in samples)
    return document


@pytest.mark.root
def test_repack_vs_cp(tmp_path: Path) -> None:
    need("mkfs.ext4", "fincore")
    document = bench("repack_vs_cp", tmp_path / "report.json", "--size", "16MiB")
    assert set(document["samples"]) == {"coldctl repack", "cp + sync", "coldctl repack --dry-run"}
    assert document["machine"]["filesystem"] == "ext4"


@pytest.mark.root
def test_prewarm_vs_tools(tmp_path: Path) -> None:
    need("mkfs.ext4", "fincore", "vmtouch")
    document = bench("prewarm_vs_tools", tmp_path / "report.json", "--size", "16MiB")
    assert set(document["samples"]) >= {"coldctl prewarm", "cat", "dd bs=1M", "vmtouch -t"}
    assert len(document["targets"]) == 2


def test_verify_vs_limit(tmp_path: Path) -> None:
    need("fincore")
    document = bench("verify_vs_limit", tmp_path / "report.json", "--size", "16MiB", "--folder", str(tmp_path))
    assert set(document["samples"]) == {"coldctl verify", "copy + hash"}


def test_memory(tmp_path: Path) -> None:
    sizes = ("--size", "4MiB", "8MiB", "--folder", str(tmp_path))
    document = bench("memory", tmp_path / "report.json", *sizes)
    assert [len(samples) for samples in document["samples"].values()] == [2, 2]
    for samples in document["samples"].values():
        assert all(sample["peak_anon_bytes"] > document["imports_bytes"] / 2 for sample in samples)


def test_startup(tmp_path: Path) -> None:
    document = bench("startup", tmp_path / "report.json", "--size", "16MiB", "--tensors", "2000")
    assert set(document["samples"]) == {"coldctl --version", "python -c pass", "coldctl status"}


@pytest.mark.root
def test_load_vs_peers(tmp_path: Path) -> None:
    need("mkfs.ext4", "fincore")
    document = bench("load_vs_peers", tmp_path / "report.json", "--size", "4MiB")
    loaders = {"coldctl map", "coldctl arena", "safetensors mmap", "safetensors pread"}
    assert set(document["samples"]) >= {f"{state}: {name}" for state in ("warm", "cold") for name in loaders}
    assert 3 * MIB < document["bytes"] <= 4 * MIB
    assert document["peak_memory_bytes"]["warm: coldctl arena"] >= document["bytes"]
    map_warm, arena_warm, map_cold, arena_cold, *memory = (target["found"] for target in document["targets"])
    assert "that of the best of 1, safetensors mmap" in map_warm
    for missing in {"tensorizer", "runai direct"} - {name.removeprefix("warm: ") for name in document["samples"]}:
        assert missing in arena_warm.partition("not installed: ")[2]
        assert missing in map_cold.partition("not installed: ")[2]
        assert missing in arena_cold.partition("not installed: ")[2]
    assert [found.partition(" takes ")[0] for found in memory] == ["warm: coldctl arena", "cold: coldctl arena"]


@pytest.mark.root
def test_small_tensors(tmp_path: Path) -> None:
    need("mkfs.ext4", "fincore")
    document = bench("small_tensors", tmp_path / "report.json", "--size", "8MiB", "--tensors", "2000")
    assert set(document["samples"]) == {"coldctl arena", "safetensors by tensor"}
    assert document["tensors"] == 2000
    assert len(document["targets"]) == 1


def test_native(tmp_path: Path) -> None:
    document = bench("native", tmp_path / "report.json", "--size", "8MiB")
    assert set(document["samples"]) >= {"encode", "torch encode", "plain encode", "decode", "block sums", "numpy sum"}
    assert document["level"] == kernels().name
    assert len(document["targets"]) == 10


def test_a_load_is_summed_up_and_one_of_other_bytes_is_not_compared(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "one", shape="llama", size_bytes=16 * MIB, shard_bytes=16 * MIB)
    make_checkpoint(tmp_path / "other", shape="llama", size_bytes=16 * MIB, shard_bytes=16 * MIB, seed=1)
    loads = Loads(tmp_path / "one")
    assert loads.memory_bytes("safetensors pread") >= 12 * MIB  # some of it is memory that imports gave back
    stored = read_folder(tmp_path / "one")
    nbytes = sum(len(tensor.data) for tensor in stored.values())
    assert loads.content == (len(stored), nbytes, total_of_folder(tmp_path / "one"))
    loads.folder = tmp_path / "other"
    with pytest.raises(DiffersError, match="safetensors mmap brought"):
        loads.memory_bytes("safetensors mmap")


def test_gpu_load_without_a_gpu_measures_nothing_and_exits_5(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (sys.executable, "-m", "scripts.bench.gpu_load", "--json", str(report))
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, report.exists()) == (5, "", False)
    assert "sees no CUDA device, so nothing was measured" in done.stderr


def test_rounds_alternate_and_keep_every_sample() -> None:
    ran = []

    def contender(name: str) -> Sample:
        ran.append(name)
        return Sample(float(len(ran)), 0.0)

    samples = interleave({"a": lambda: contender("a"), "b": lambda: contender("b")}, 3)
    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert [sample.seconds for sample in samples["a"]] == [1, 4, 5]
    assert [sample.seconds for sample in samples["b"]] == [2, 3, 6]


def test_no_round_but_the_first_begins_too_late() -> None:
    contenders = {"a": lambda: Sample(1.0, 0.0), "b": lambda: Sample(1.0, 0.0)}
    samples = interleave(contenders, 3, until_seconds=time.monotonic() - 1)
    assert {name: len(runs) for name, runs in samples.items()} == {"a": 1, "b": 1}


def test_memory_of_a_child_is_seen() -> None:
    holds_64_mib = "import time; held = bytearray(b'x') * (64 << 20); time.sleep(0.2)"
    peak_bytes = run_watching_memory(sys.executable, "-c", holds_64_mib).peak_anon_bytes
    assert peak_bytes is not None
    assert 64 * MIB <= peak_bytes < 160 * MIB


def test_a_failing_command_is_no_sample() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(sys.executable, "-c", "raise SystemExit(3)")
