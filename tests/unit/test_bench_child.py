"""One load in a process of its own: what it brought, by which way, what was on the clock, and why one failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.child.outcome import outcome_of
from coldctl.jobs.bench.child.own import OwnLoad, options_of
from coldctl.jobs.bench.options import HOST_MODES
from coldctl.jobs.bench.processes.host_memory import PeakSampler
from coldctl.jobs.bench.task import Outcome, Task
from tests.bench_content import total_of_folder
from tests.bench_tasks import task
from tests.cli.process import run_python
from tests.loads import PATIENCE_SECONDS, layer
from tests.standin import StandIn
from tests.tiny import Made, made, read_folder, write_sharded

MIB = 1 << 20
CHILD = ("-m", "coldctl.jobs.bench.child")


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, each with attention, between an embedding and a head, in two files."""
    folder = tmp_path_factory.mktemp("layered")
    first: dict[str, Made] = {"model.embed_tokens.weight": made("BF16", 512, 1024)} | layer(0) | layer(1)
    second: dict[str, Made] = layer(2) | layer(3) | {"lm_head.weight": made("BF16", 512, 1024, seed=9)}
    write_sharded(folder, [first, second])
    return folder


def task_of(folder: Path, **changes: Any) -> Task:
    files = tuple(sorted(map(str, folder.glob("*.safetensors"))))
    return task(**{"path": str(folder), "files": files, **changes})


def by_peer(folder: Path, peer: str, **changes: Any) -> Task:
    return task_of(folder, peer=peer, mode=None, **changes)


def assert_brought(outcome: Outcome, folder: Path) -> None:
    """All tensors of the files, by numbers that are worked out from the files alone."""
    stored = [tensor.data for tensor in read_folder(folder).values()]
    assert outcome.error is None
    assert (outcome.tensors, outcome.bytes) == (len(stored), sum(map(len, stored)))
    assert outcome.content_sum == f"{total_of_folder(folder):016x}"


def run_child(task: Task, *python: str) -> tuple[Outcome, str]:
    """What the process leaves on its stdout, all of which is one document, and on its stderr."""
    document = msgspec.json.encode(task).decode()
    ended = run_python(*(python or CHILD), input=document)
    assert ended.returncode == 0, ended.stderr
    return msgspec.json.decode(ended.stdout, type=Outcome), ended.stderr


@pytest.mark.parametrize("mode", HOST_MODES)
def test_every_mode_of_the_host_brings_all_bytes_and_is_reported(folder: Path, mode: str) -> None:
    outcome = outcome_of(task_of(folder, mode=mode))
    assert_brought(outcome, folder)
    assert outcome.mode in (("buffered", "direct") if mode == "auto" else (mode,))
    assert outcome.reason is not None
    assert outcome.direct_bytes == 0 or mode in ("auto", "direct")


@pytest.mark.parametrize("peer", ["safetensors", "torch"])
def test_a_peer_brings_the_same_and_nothing_is_known_of_its_inside(folder: Path, peer: str) -> None:
    outcome = outcome_of(by_peer(folder, peer))
    assert_brought(outcome, folder)
    assert {stage.name for stage in outcome.stages} == {"import_torch", "import_peer", "touch"}
    inside = (outcome.mode, outcome.reason, outcome.reader_streams, outcome.direct_bytes, outcome.copies)
    assert inside == (None, None, None, None, None)


def test_imports_come_before_the_load_and_the_touch_ends_it(folder: Path) -> None:
    outcome = outcome_of(task_of(folder, mode="buffered"))
    assert outcome.seconds is not None
    assert outcome.loaded_seconds is not None
    stages = {stage.name: stage for stage in outcome.stages}
    assert list(stages) == ["import_torch", "plan", "allocate", "read", "touch"]
    imported, touch = stages["import_torch"], stages["touch"]
    assert imported.start_seconds + imported.seconds < 0 == stages["plan"].start_seconds
    assert stages["plan"].start_seconds < stages["allocate"].start_seconds < stages["read"].start_seconds
    assert stages["read"].start_seconds + stages["read"].seconds < outcome.loaded_seconds <= touch.start_seconds
    assert touch.start_seconds + touch.seconds <= outcome.seconds
    assert (imported.bytes, touch.bytes) == (0, outcome.bytes)
    assert outcome.cpu_seconds is not None
    assert outcome.cpu_seconds > 0


def test_first_layers_and_attention_count_from_the_same_zero(layered: Path) -> None:
    outcome = outcome_of(task_of(layered, first_layers=1, spans=True))
    assert_brought(outcome, layered)
    assert outcome.first_layers_seconds is not None
    assert outcome.loaded_seconds is not None
    opening = next(span for span in outcome.spans if span.track == "plan")
    assert opening.start_seconds == 0.0
    assert opening.seconds < outcome.first_layers_seconds < outcome.loaded_seconds
    assert len(outcome.attention_ready_seconds) == 4
    first, *others = outcome.attention_ready_seconds
    assert opening.seconds < first < outcome.first_layers_seconds
    assert all(outcome.first_layers_seconds < each < outcome.loaded_seconds for each in others)


def test_spans_show_readers_and_stages_only_where_they_are_asked_for(layered: Path) -> None:
    outcome = outcome_of(task_of(layered, mode="buffered", streams=1, spans=True))
    assert {span.track for span in outcome.spans} == {"import_torch", "plan", "allocate", "reader 1", "touch"}
    assert sum(span.bytes for span in outcome.spans if span.track == "reader 1") == outcome.bytes
    plan = next(stage for stage in outcome.stages if stage.name == "plan")
    assert sum(span.seconds for span in outcome.spans if span.track == "plan") == pytest.approx(plan.seconds)
    assert outcome_of(task_of(layered, mode="buffered")).spans == ()


def test_the_hosts_settings_reach_the_loader(layered: Path) -> None:
    outcome = outcome_of(
        task_of(layered, mode="buffered", streams=3, chunk_bytes=MIB, order="attention-first", verify=True, spans=True)
    )
    assert_brought(outcome, layered)
    assert outcome.reader_streams == 3
    assert "verify" in {stage.name for stage in outcome.stages}
    reads = [span for span in outcome.spans if span.track.startswith("reader")]
    assert max(span.bytes for span in reads) <= MIB
    assert "self_attn" in min(reads, key=lambda span: span.start_seconds).name


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        ("cpu", {"mode": "auto"}, {"mode": "auto"}),
        ("cpu", {"mode": "direct", "streams": 2}, {"mode": "direct", "readers": 2}),
        ("cpu", {"mode": "buffered", "chunk_bytes": MIB}, {"mode": "buffered", "chunk_bytes": MIB}),
        ("cpu", {"mode": "map", "order": "layers"}, {"alloc": "map", "order": "layers"}),
        ("cpu", {"mode": "per-tensor"}, {"alloc": "per-tensor"}),
        ("cuda:0", {"mode": "ring"}, {"mode": "ring"}),
        ("cuda:0", {"mode": "ring", "streams": 1}, {"mode": "ring", "lanes": False}),
        ("cuda:0", {"mode": "direct", "streams": 4}, {"mode": "direct", "lanes": True}),
        ("cuda:0", {"mode": "per-tensor", "chunk_bytes": MIB}, {"mode": "per-tensor", "chunk_bytes": MIB}),
    ],
)
def test_a_task_stands_for_options_of_the_loader(
    tmp_path: Path, device: str, changes: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert options_of(task_of(tmp_path, device=device, **changes)) == {"verify": False, **expected}


@pytest.mark.parametrize("mode", ["ring", "direct", "mapped", "per-tensor"])
def test_a_load_to_a_device_reports_its_ring_and_copies(layered: Path, mode: str) -> None:
    load = OwnLoad(task_of(layered, device="cuda:0", mode=mode, streams=4 if mode == "ring" else None, spans=True))
    tensors = load.load(StandIn())
    outcome = load.described(Outcome(bytes=sum(each.nbytes for each in tensors.values())))
    assert outcome.mode == mode
    assert (outcome.ring is not None) == (mode in ("ring", "direct"))
    assert {"plan", "h2d"} <= {stage.name for stage in outcome.stages}
    if mode == "ring":
        assert outcome.copies is not None
        assert (outcome.copies.streams, outcome.copies.bytes) == (4, outcome.bytes)
        assert {"copy q", "copy k", "copy v", "copy rest"} <= {span.track for span in outcome.spans}


def test_memory_is_that_of_the_load_and_not_of_the_imports(tmp_path: Path) -> None:
    write_sharded(tmp_path, [{"large": made("U8", 64 * MIB)}])
    loaded, mapped = outcome_of(task_of(tmp_path, mode="buffered")), outcome_of(task_of(tmp_path, mode="map"))
    assert loaded.host_memory is not None
    assert mapped.host_memory is not None
    assert 60 * MIB < loaded.host_memory.peak_anon_bytes - loaded.host_memory.before_anon_bytes < 96 * MIB
    assert mapped.host_memory.peak_anon_bytes - mapped.host_memory.before_anon_bytes < 16 * MIB


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"path": "/nowhere/at all"}, "/nowhere/at all does not exist"),
        ({"path": "/nowhere/\udcff"}, r"/nowhere/\udcff does not exist"),
        ({"device": "cuda:12345"}, "there is no cuda:12345" if torch.cuda.is_available() else "cuda:12345 needs torch"),
        ({"device": "tpu"}, "'tpu' is no CUDA device"),
        ({"device": "tpu", "peer": "safetensors", "mode": None}, "'tpu' is no CUDA device"),
        ({"peer": "safetensors", "mode": None, "files": ("/nowhere.safetensors",)}, "FileNotFoundError: "),
    ],
)
def test_a_load_that_fails_says_what_and_why_in_one_line(
    folder: Path, changes: Mapping[str, Any], expected: str
) -> None:
    outcome = outcome_of(task_of(folder, **changes))
    assert outcome.error is not None
    assert outcome.error.startswith(expected)
    assert "\n" not in outcome.error
    assert replace(outcome, error=None) == Outcome()
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


def test_of_many_lines_that_a_peer_fails_with_the_first_one_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(files: Sequence[str], device: str) -> peers.Loaded:
        raise RuntimeError(f"no memory on {device} for {len(files)} files\nCUDA kernel errors might be reported later")

    monkeypatch.setitem(peers.BY_NAME, "torch", peers.Peer("torch", lambda: failing))
    assert outcome_of(by_peer(folder, "torch")).error == "RuntimeError: no memory on cpu for 4 files"


NOISY_AND_HANGING = """
import os, sys, threading, time
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.child.__main__ import main

def imported():
    load = peers.safetensors()
    print("imported")
    os.write(1, b"from native code\\n")
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return load

peers.BY_NAME["safetensors"] = peers.Peer("safetensors", imported)
main()
"""


def test_what_a_peer_prints_and_leaves_running_harms_nothing(folder: Path) -> None:
    outcome, errors = run_child(by_peer(folder, "safetensors"), "-c", NOISY_AND_HANGING)
    assert_brought(outcome, folder)
    assert "from native code" in errors


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from coldctl.jobs.bench.child.__main__ import main
main()
"""


def test_without_torch_numpy_arrays_are_loaded_and_other_loads_say_what_is_missing(folder: Path) -> None:
    outcome, _ = run_child(task_of(folder), "-c", WITHOUT_TORCH)
    assert_brought(outcome, folder)
    assert [stage.name for stage in outcome.stages] == ["plan", "allocate", "read", "touch"]
    outcome, _ = run_child(by_peer(folder, "safetensors"), "-c", WITHOUT_TORCH)
    assert (outcome.error or "").startswith("safetensors cannot be imported: import of torch halted")
    outcome, _ = run_child(task_of(folder, device="cuda:0", mode="ring"), "-c", WITHOUT_TORCH)
    assert (outcome.error or "").startswith("cuda:0 needs torch, which cannot be imported")


def test_the_process_answers_for_a_folder_whose_name_is_not_utf8(folder: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.symlink(folder, odd)
    document = json.dumps(msgspec.to_builtins(task_of(folder, path=os.fsdecode(odd))))
    ended = run_python(*CHILD, input=document)
    assert ended.returncode == 0
    assert_brought(msgspec.json.decode(ended.stdout, type=Outcome), folder)


HOLDING = """
import mmap, sys
held = mmap.mmap({fd}, {nbytes}, access=mmap.ACCESS_READ) if {fd} >= 0 else bytearray({nbytes})
touched = sum(held[::4096])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(nbytes: int, file: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has touched `nbytes` of memory of its own, or of a file that it maps."""
    fd = os.open(file, os.O_RDONLY) if file else -1
    command = [sys.executable, "-c", HOLDING.format(fd=fd, nbytes=nbytes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=[fd] if file else [], **pipes) as process:  # type: ignore[call-overload]
        yield process
    if file:
        os.close(fd)


def peak_of(process: subprocess.Popen[bytes]) -> int:
    """What a sampler sees of the process, from when it holds its memory to its end."""
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    sampler = PeakSampler(process.pid)
    sampler.start()
    until_seconds = time.monotonic() + PATIENCE_SECONDS
    while not sampler.peak_anon_bytes and time.monotonic() < until_seconds:
        time.sleep(0.01)
    process.stdin.close()
    process.wait()
    sampler.stop()
    return sampler.peak_anon_bytes


def test_a_sampler_sees_the_memory_of_another_process() -> None:
    with holding(64 * MIB) as process:
        assert 60 * MIB < peak_of(process) < 128 * MIB


def test_mapped_files_are_no_memory_of_a_process(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(np.ones(64 * MIB, dtype=np.uint8).tobytes())
    with holding(64 * MIB, file) as process:
        assert 0 < peak_of(process) < 64 * MIB


def test_of_a_process_that_is_gone_nothing_is_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    sampler = PeakSampler(process.pid)
    sampler.start()
    sampler.stop()
    assert sampler.peak_anon_bytes == 0
