"""One child a run: whatever becomes of it is an outcome, and none is left behind. Children here are small scripts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coldctl.errors import EnvironmentLacksError, StoppedError
from coldctl.events import NULL, Events
from coldctl.jobs.bench.afterwards import noted
from coldctl.jobs.bench.contenders import contenders
from coldctl.jobs.bench.options import BenchOptions
from coldctl.jobs.bench.pace import Pace
from coldctl.jobs.bench.processes.process import Deadline
from coldctl.jobs.bench.processes.runner import Ran, Runner
from coldctl.jobs.bench.rounds import Rounds
from coldctl.jobs.bench.task import Outcome, Task
from coldctl.jobs.bench.timelines import timelines
from coldctl.loader.format.checkpoint import open_checkpoint
from coldctl.results.bench import BenchRun, HostMemory, Timeline
from coldctl.results.load import Span
from tests.bench_results import peer
from tests.bench_tasks import task
from tests.tiny import made, write_shard

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 20.0
HALF_A_MINUTE = Deadline(30.0, "half a minute")

TASK = task()


def python(script: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script, *arguments)


def run(
    script: str,
    *arguments: str,
    deadline: Deadline = HALF_A_MINUTE,
    task: Task = TASK,
    environment: Mapping[str, str] = os.environ,
) -> Outcome:
    command = python(script, *arguments)
    return Runner(deadline, NULL, environment=environment, command=command).run(task).outcome


def test_the_task_goes_in_and_the_outcome_comes_out() -> None:
    script = """
import json, sys
task = json.load(sys.stdin)
print(json.dumps({"seconds": 0.5, "bytes": len(task["files"]), "mode": task["mode"], "content_sum": "ab"}))
"""
    files = tuple(f"model/{number:06d}" for number in range(20_000))  # more than a pipe holds
    outcome = run(script, task=with_files(files))
    assert outcome == Outcome(seconds=0.5, bytes=20_000, mode="auto", content_sum="ab")


def with_files(files: Sequence[str]) -> Task:
    return replace(TASK, files=tuple(files))


def test_names_of_files_that_are_no_text_arrive() -> None:
    script = """
import json, os, sys
raw = os.fsencode(json.load(sys.stdin)["files"][0])
print(json.dumps({"seconds": 1.0, "content_sum": raw.hex()}))
"""
    outcome = run(script, task=with_files([os.fsdecode(b"a\xff")]))
    assert outcome.content_sum == b"a\xff".hex()


def test_the_environment_is_the_childs() -> None:
    script = 'import json, os; print(json.dumps({"seconds": 1.0, "reason": os.environ["PYTORCH_ALLOC_CONF"]}))'
    outcome = run(script, environment={**os.environ, "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert outcome.reason == "max_split_size_mb:64"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process was killed by SIGSEGV"),
        (
            'import os, sys; print("first\\nlast words", file=sys.stderr, flush=True); os.kill(os.getpid(), 9)',
            "its process was killed by SIGKILL: last words",
        ),
        (
            "import os; print('{\"seconds\": 1.0}', flush=True); os.kill(os.getpid(), 6)",
            "its process was killed by SIGABRT",
        ),
        ("raise SystemExit(3)", "its process ended with exit code 3"),
        ("import no_such_module", "its process ended with exit code 1: ModuleNotFoundError: No module named"),
        ("pass", "its process ended without an answer"),
        ("import os; os._exit(0)", "its process ended without an answer"),
        ("print('[1, 2]')", "its process ended, and its answer makes no sense: Expected `object`"),
        ('print(\'{"seconds": "soon"}\')', "its answer makes no sense: Expected `float | null`, got `str`"),
        ("print('{\"bytes\": 3}')", "its process ended without a measurement"),
        ('print(\'{"error": "no such file"}\')', "no such file"),
    ],
)
def test_a_child_that_fails_is_a_failed_run_that_says_how(script: str, error: str) -> None:
    outcome = run(script)
    assert outcome.error is not None
    assert error in outcome.error
    assert outcome.seconds is None


def test_a_long_last_line_is_cut() -> None:
    error = run('import sys; sys.exit("x" * 100_000)').error
    assert error is not None
    assert "exit code 1: xxx" in error
    assert len(error) < 500


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_child_that_writes_without_end_is_killed(stream: str) -> None:
    """What it writes is in memory that no process is charged for, so the kernel would kill who reads it."""
    error = run(f"import sys\nwhile True: sys.{stream}.buffer.write(b'last words ' * 100_000)").error
    assert error is not None
    assert error.startswith("its process wrote more than 64.0 MiB to its stdout or stderr, and was killed")
    assert len(error) < 500


def test_a_child_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    error = run(HANGING, str(tmp_path / "pids"), deadline=Deadline(4.0, "4 s (a reason)")).error
    assert error == "its process did not end within 4 s (a reason), and was killed: waiting"
    assert_gone(pids_in(tmp_path / "pids"))


HANGING = """
import os, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("waiting", file=sys.stderr, flush=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {grandchild.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(100)
"""


def test_a_stop_ends_the_child_and_all_that_it_started(tmp_path: Path) -> None:
    class StopOnceItRuns(Events):
        def raise_if_stopped(self) -> None:
            if (tmp_path / "pids").exists():
                raise StoppedError(signal.SIGTERM)

    command = python(HANGING, str(tmp_path / "pids"))
    with pytest.raises(StoppedError):
        Runner(HALF_A_MINUTE, StopOnceItRuns(), command=command).run(TASK)
    assert_gone(pids_in(tmp_path / "pids"))


def test_the_kernel_ends_the_child_when_its_job_is_killed(tmp_path: Path) -> None:
    child = (
        "import os, sys, time; from coldctl.loader.syscalls import end_with_parent; end_with_parent(); "
        "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"
    )
    job = f"""
import sys
from coldctl.events import NULL
from coldctl.jobs.bench.processes.process import Deadline, run_child
run_child([sys.executable, "-c", {child!r}, {str(tmp_path / "pid")!r}], b"", Deadline(100.0, "ever"), NULL)
"""
    with subprocess.Popen(python(job), cwd=ROOT) as process:
        wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        process.kill()
    assert_gone(pids_in(tmp_path / "pid"))


def test_where_no_process_can_be_started_that_is_said() -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot start a process for a load"):
        Runner(HALF_A_MINUTE, NULL, command=("/no/such/python",)).run(TASK)


def test_a_shortage_that_keeps_a_process_from_starting_is_told_by_its_limit() -> None:
    script = """
import resource
from coldctl.errors import EnvironmentLacksError
from coldctl.events import NULL
from coldctl.jobs.bench.processes.process import Deadline, run_child
from os import dup
run_child(["true"], b"", Deadline(9, ""), NULL)  # all that it imports is imported
resource.setrlimit(resource.RLIMIT_NOFILE, (dup(0) + 4, 4096))
try:
    run_child(["true"], b"", Deadline(9, ""), NULL)
except EnvironmentLacksError as error:
    print(error.message, "-", error.hint)
"""
    done = subprocess.run(python(script), capture_output=True, text=True, timeout=60, cwd=ROOT)
    told = "cannot start a process for a load: Too many open files - raise the limit of open files (ulimit -n)\n"
    assert done.stdout == told, done.stderr


def test_memory_of_the_child_is_seen_from_outside() -> None:
    script = """
import json, time
held = bytearray(b"x") * (64 << 20)
time.sleep(0.3)
del held
print(json.dumps({"seconds": 1.0, "host_memory": {"peak_anon_bytes": 5, "before_anon_bytes": 3}}))
"""
    memory = run(script).host_memory
    assert memory is not None
    assert memory.before_anon_bytes == 3
    assert 64 << 20 <= memory.peak_anon_bytes < 160 << 20
    assert run(
        'print(\'{"seconds": 1.0, "host_memory": {"peak_anon_bytes": 9000000000, "before_anon_bytes": 1}}\')'
    ) == (Outcome(seconds=1.0, host_memory=HostMemory(9_000_000_000, 1)))


def test_a_device_that_cannot_be_sampled_is_a_note_of_the_run() -> None:
    def ran(script: str) -> Ran:
        return Runner(HALF_A_MINUTE, NULL, device_uuid="GPU-of-nobody", command=python(script)).run(TASK)

    found = ran('print(\'{"seconds": 1.0, "notes": ["its own"]}\')')
    assert found.device_samples == ()
    own, note = found.outcome.notes
    assert own == "its own"
    assert note.startswith("the device could not be sampled: ")
    assert ran('print(\'{"error": "no such file"}\')').outcome == Outcome(error="no such file")
    assert run("print('{\"seconds\": 1.0}')").notes == ()


def pids_in(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


def assert_gone(pids: Sequence[int]) -> None:
    assert pids
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    """Zombies, which whoever adopted them has yet to wait for, run no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    until_seconds = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until_seconds
        time.sleep(0.01)


NOTING = """
import json, sys
task = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    file.write((task["peer"] or task["mode"]) + "\\n")
if task["mode"] == "per-tensor":
    sys.exit("no tensor today")
content_sum = "ff" if task["peer"] else "aa"
nbytes = {"safetensors": 5000, "torch": 4999}.get(task["peer"], 5000)
tensors = 2 if task["peer"] == "fastsafetensors" else 1
print(json.dumps({"seconds": 2.0, "bytes": nbytes, "tensors": tensors, "content_sum": content_sum}))
"""


class Noting(Events):
    """There is no phase of bytes: most of a run is no load, so that its rate would be nobody's."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin(self, label: str, total_bytes: int) -> None:
        raise AssertionError(label, total_bytes)

    def note(self, message: str) -> None:
        self.notes.append(message)


def in_rounds(tmp_path: Path, options: BenchOptions, events: Events) -> tuple[list[BenchRun], list[str]]:
    """The runs, and the ways in the order in which they were run."""
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    ran = tmp_path / "ran"
    runner = Runner(HALF_A_MINUTE, NULL, command=python(NOTING, str(ran)))
    runs = Rounds(options, checkpoint, runner, events).run_all(contenders(options)[0])
    return runs, ran.read_text().split()


def test_rounds_reverse_their_order_each_time_and_every_run_is_kept(tmp_path: Path) -> None:
    events = Noting()
    options = BenchOptions("model", device="cpu", modes=("map", "auto", "direct"), caches=("warm",), rounds=3)
    runs, ran = in_rounds(tmp_path, options, events)
    assert ran == ["map", "auto", "direct", "direct", "auto", "map", "map", "auto", "direct"]
    assert [(run.contender, run.round) for run in runs] == list(zip(ran, [0, 0, 0, 1, 1, 1, 2, 2, 2], strict=True))
    size = (tmp_path / "model.safetensors").stat().st_size
    assert {(run.resident_before_bytes, run.resident_after_bytes) for run in runs} == {(size, size)}
    assert {(run.seconds, run.bytes, run.bytes_per_second, run.cache) for run in runs} == {(2.0, 5000, 2500.0, "warm")}
    first, *later = events.notes
    assert first == "round 1 of 3"
    assert [re.sub(r"about \d+ s", "about N s", note) for note in later] == [
        "round 2 of 3, about N s left",
        "round 3 of 3, about N s left",
    ]


def test_within_a_round_the_pace_is_told_every_ten_seconds() -> None:
    events, seconds = Noting(), iter([0.0, 0.0, 4.0, 12.0, 12.0, 16.0, 40.0, 40.0])
    pace = Pace(2, 3, events, clock=lambda: next(seconds))
    pace.round(0)
    pace.load()  # at 4 s: told 4 s ago
    pace.load()  # at 12 s, two loads: 6 s each, four are left
    assert events.notes == ["round 1 of 2", "load 3 of 6, about 24 s left"]
    pace.load()  # the round ends: the next one tells
    pace.round(1)  # at 16 s, three loads
    assert events.notes[2:] == ["round 2 of 2, about 16 s left"]
    pace.load()  # at 40 s, four loads: 10 s each
    assert events.notes[3:] == ["load 5 of 6, about 20 s left"]


def test_a_peer_that_cannot_load_them_fails_once_in_each_state(tmp_path: Path) -> None:
    options = BenchOptions("model", device="cpu", modes=("auto",), caches=("warm",), rounds=3)
    ways = [*contenders(options)[0], peer("instanttensor")]
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    runner = Runner(HALF_A_MINUTE, NULL, command=python(NOTING, str(tmp_path / "ran")))
    runs = Rounds(options, checkpoint, runner, NULL).run_all(ways)
    assert (tmp_path / "ran").read_text().split() == ["auto"] * 3
    refused = [(run.round, run.error) for run in runs if run.contender == "instanttensor"]
    assert refused == [(0, "instanttensor loads to CUDA devices only")]


def test_of_a_peer_with_a_format_of_its_own_those_files_are_brought_into_the_state(tmp_path: Path) -> None:
    options = BenchOptions("model", device="cpu", caches=("warm",), rounds=1)
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    (tmp_path / "model.tensors").write_bytes(bytes(12_345))
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    runner = Runner(HALF_A_MINUTE, NULL, command=python(NOTING, str(tmp_path / "ran")))
    runs = Rounds(options, checkpoint, runner, NULL).run_all([peer("tensorizer"), peer("safetensors")])
    size = (tmp_path / "model.safetensors").stat().st_size
    assert [run.error for run in runs] == [None, None]
    assert [run.resident_before_bytes for run in runs] == [12_345, size]
    assert [run.resident_after_bytes for run in runs] == [12_345, size]


def test_files_that_vanish_lose_no_run(tmp_path: Path) -> None:
    class Removing(Noting):
        def note(self, message: str) -> None:
            super().note(message)
            if message.startswith("round 2"):
                (tmp_path / "model.safetensors").unlink()

    options = BenchOptions("model", device="cpu", modes=("auto",), caches=("warm",), rounds=2)
    runs, ran = in_rounds(tmp_path, options, Removing())
    assert ran == ["auto"]
    assert runs[0].error is None
    assert (runs[1].error or "").startswith("not warm: ")
    assert "No such file" in (runs[1].error or "")


def test_who_brings_more_or_less_than_the_checkpoint_has_failed(tmp_path: Path) -> None:
    """Zeros add nothing to the sum."""
    options = BenchOptions("model", device="cpu", modes=("auto",), caches=("warm",), rounds=1)
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    runner = Runner(HALF_A_MINUTE, NULL, command=python(NOTING, str(tmp_path / "ran")))
    ways = [*contenders(options)[0], peer("torch"), peer("fastsafetensors")]
    own, less, more = Rounds(options, checkpoint, runner, NULL).run_all(ways)
    assert own.error is None
    assert less.error == "brought 1 tensors and 4,999 bytes, and not the 1 and 5,000 of the checkpoint"
    assert more.error == "brought 2 tensors and 5,000 bytes, and not the 1 and 5,000 of the checkpoint"
    assert (less.seconds, less.bytes_per_second) == (None, None)


def test_who_brings_other_bytes_than_coldctl_has_failed(tmp_path: Path) -> None:
    options = BenchOptions(
        "model", device="cpu", modes=("per-tensor", "auto"), compare=("safetensors",), caches=("warm",), rounds=2
    )
    runs, ran = in_rounds(tmp_path, options, NULL)
    assert ran == ["per-tensor", "auto", "safetensors", "safetensors", "auto", "per-tensor"]
    by_contender = {run.contender: run for run in runs}
    assert by_contender["auto"].error is None
    assert by_contender["per-tensor"].error == "its process ended with exit code 1: no tensor today"
    other = by_contender["safetensors"]
    assert other.error == "brought other bytes: their sum is ff, and not that of coldctl's first load"
    assert (other.seconds, other.bytes_per_second, other.content_sum) == (None, None, "ff")


WATCHED = """
import json, sys
task = json.load(sys.stdin)
if task["spans"] and len(sys.argv) > 1:
    sys.exit(sys.argv[1])
spans = [{"track": "plan", "name": "plan", "start_seconds": 0.0, "seconds": 0.5, "bytes": 0}] if task["spans"] else []
seconds = 3.0 if task["spans"] else 2.0
first = {"loaded_seconds": seconds - 0.5, "first_layers_seconds": seconds - 1.5}
print(json.dumps({"seconds": seconds, "bytes": 5000, "tensors": 1, "content_sum": "aa", "spans": spans, **first}))
"""


def watched(tmp_path: Path, *arguments: str) -> tuple[list[Timeline], list[str]]:
    """The timelines of loads that take 2 s in the rounds and 3 s after them, and the notes of those that fail."""
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    options = BenchOptions("model", device="cpu", modes=("map",), caches=("warm",), rounds=1)
    runner = Runner(HALF_A_MINUTE, NULL, command=python(WATCHED, *arguments))
    rounds, ways = Rounds(options, checkpoint, runner, NULL), contenders(options)[0]
    notes: list[str] = []
    return [timeline for timeline, _ in timelines(rounds, ways, rounds.run_all(ways), notes)], notes


def test_a_timeline_has_the_times_of_its_own_load(tmp_path: Path) -> None:
    span = Span("plan", "plan", 0.0, 0.5, 0)
    assert watched(tmp_path) == ([Timeline("map", "warm", 3.0, 2.5, 1.5, (span,), ())], [])


def test_a_timeline_that_fails_leaves_a_note(tmp_path: Path) -> None:
    note = "no timeline of map (warm): its process ended with exit code 1: no second time"
    assert watched(tmp_path, "no second time") == ([], [note])


def test_what_fails_after_the_rounds_is_a_note_and_a_stop_is_none() -> None:
    notes: list[str] = []
    with noted("no limits", notes):
        raise EnvironmentLacksError("the GPU has gone")
    with noted("no limits", notes):
        raise ValueError("bad")
    assert notes == ["no limits: the GPU has gone", "no limits: ValueError('bad')"]
    with pytest.raises(StoppedError), noted("no limits", notes):
        raise StoppedError(signal.SIGTERM)
    assert len(notes) == 2
