"""bench as a whole, with real processes: what is in its result, and what it declines to do. No time is asserted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coldctl.errors import EnvironmentLacksError, FaultError, InputError, StoppedError, UsageError
from coldctl.events import Events
from coldctl.jobs.bench import BenchOptions, bench
from coldctl.report.json import result_document
from coldctl.results.bench import BenchResult
from tests.bench_content import total_of_folder
from tests.filesystems import loop_filesystem, tmpfs
from tests.loads import layer
from tests.tiny import made, read_folder, write_shard, write_sharded

MIB = 1 << 20


class Noting(Events):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Two shards on a disk of their own: an embedding and two layers."""
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        write_sharded(
            filesystem.path,
            [{"model.embed_tokens.weight": made("BF16", 512, 1024)}, {**layer(0), **layer(1), "odd": made("U8", 13)}],
        )
        yield filesystem.path


@pytest.fixture(scope="module")
def result(disk: Path) -> BenchResult:
    return bench(
        BenchOptions(
            str(disk),
            device="cpu",
            modes=("map", "buffered"),
            chunks_bytes=(2 * MIB,),
            compare=("safetensors",),
            rounds=1,
            first_layers=1,
        )
    )


@pytest.mark.root
def test_every_contender_runs_once_a_round_in_each_cache_state(result: BenchResult, disk: Path) -> None:
    names = ["map", "buffered, 2 MiB", "safetensors"]
    assert [contender.name for contender in result.contenders] == names
    assert [(run.contender, run.cache) for run in result.runs] == [
        (name, cache) for cache in ("cold", "warm") for name in names
    ]
    size = sum(path.stat().st_size for path in disk.glob("*.safetensors"))
    nbytes = sum(len(tensor.data) for tensor in read_folder(disk).values())
    for run in result.runs:
        assert run.error is None
        assert (run.content_sum, run.tensors, run.bytes) == (
            f"{total_of_folder(disk):016x}",
            len(read_folder(disk)),
            nbytes,
        )
        assert run.resident_before_bytes == (0 if run.cache == "cold" else size)
        assert run.seconds is not None
        assert run.bytes_per_second == nbytes / run.seconds
        assert run.host_memory is not None
        assert run.host_memory.peak_anon_bytes >= run.host_memory.before_anon_bytes > 0
    assert (result.bytes, result.tensors, result.files, result.rounds) == (nbytes, len(read_folder(disk)), 2, 1)
    assert (result.verify, result.first_layers) == (False, 1)
    assert (result.memory_fraction, result.max_split_size_bytes) == (None, None)


@pytest.mark.root
def test_the_result_has_limits_summaries_and_the_times_of_layers(result: BenchResult) -> None:
    assert (result.device, result.host.filesystem) == ("cpu", "ext4")
    limits = result.limits
    assert limits.disk_direct_bytes_per_second
    assert limits.disk_buffered_bytes_per_second
    assert limits.memcpy_bytes_per_second
    assert limits.h2d_1_bytes_per_second is None
    assert limits.unmeasured.keys() == {"h2d_1", "h2d_2", "h2d_4"}
    assert [(each.contender, each.cache, each.runs, each.failed) for each in result.summaries] == [
        (run.contender, run.cache, 1, 0) for run in result.runs
    ]
    assert (result.best, result.comparisons, result.regressions) == (None, [], None)
    assert result.best_reason
    fastest = min(result.runs[:2], key=lambda run: run.seconds or 0.0)
    assert result.first_layers_seconds == fastest.first_layers_seconds
    assert result.first_layers_seconds is not None
    assert result.attention_ready_seconds == list(fastest.attention_ready_seconds)
    assert len(result.attention_ready_seconds) == 2


@pytest.mark.root
def test_one_more_run_in_each_state_has_a_timeline_and_a_map_of_the_page_cache(result: BenchResult) -> None:
    own = {"map", "buffered, 2 MiB"}
    assert [timeline.cache for timeline in result.timelines] == ["cold", "warm"]
    for timeline, residency in zip(result.timelines, result.residency, strict=True):
        assert timeline.contender in own
        assert timeline.spans
        assert timeline.loaded_seconds is not None
        assert timeline.first_layers_seconds is not None
        assert timeline.first_layers_seconds <= timeline.loaded_seconds <= timeline.seconds
        assert (residency.contender, residency.cache) == (timeline.contender, timeline.cache)
        assert residency.before == (0.0 if timeline.cache == "cold" else 1.0,) * 128
        assert residency.after is not None
        assert len(residency.after) == 128


@pytest.mark.root
def test_limits_that_cannot_be_measured_again_are_a_note_and_lose_no_run() -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        file = filesystem.path / "model.safetensors"
        write_shard(file, {"a": made("F32", 1 << 20)})

        class Touching(Noting):
            """What is loaded stays the same, but the file is no longer the one that the job looked at."""

            def note(self, message: str) -> None:
                super().note(message)
                if message == "round 1 of 1":
                    os.utime(file)

        events = Touching()
        result = bench(BenchOptions(str(file), device="cpu", modes=("buffered",), caches=("cold",), rounds=1), events)
    note = "the limits could not be measured again: model.safetensors was changed or replaced since its header was read"
    assert result.notes == [note]
    assert events.notes == ["round 1 of 1", note]
    assert [run.error for run in result.runs] == [None]
    assert [timeline.contender for timeline in result.timelines] == ["buffered"]
    assert result.limits.disk_buffered_bytes_per_second
    assert result.limits.memcpy_bytes_per_second


@pytest.mark.root
def test_a_state_that_cannot_be_had_is_left_out_with_a_note() -> None:
    with tmpfs(16 * MIB) as folder:
        write_shard(folder / "model.safetensors", {"a": made("F32", 1000)})
        events = Noting()
        result = bench(BenchOptions(str(folder), device="cpu", modes=("map",), rounds=2), events)
        note = "no cold loads: 100 % stays in the page cache (pages of tmpfs are the file itself)"
        assert note in result.notes
        assert note in events.notes
        assert [(run.cache, run.error) for run in result.runs] == [("warm", None)] * 2
        assert [timeline.cache for timeline in result.timelines] == ["warm"]
        assert result.limits.unmeasured["disk_direct"] == "tmpfs has no disk"
        with pytest.raises(EnvironmentLacksError, match="no cache state that was asked for: no cold loads") as caught:
            bench(BenchOptions(str(folder), device="cpu", modes=("map",), caches=("cold",), rounds=2), none := Noting())
        assert caught.value.exit_code == 5
        assert none.notes == ["round 1 of 2"]


@pytest.mark.root
def test_a_former_result_is_a_baseline_for_the_same_checkpoint_only(
    result: BenchResult, disk: Path, tmp_path: Path
) -> None:
    former = tmp_path / "former.json"
    former.write_text(result_document("bench", result, ok=True))
    asked = BenchOptions(str(disk), device="cpu", modes=("map",), caches=("warm",), rounds=1, first_layers=1)
    options = replace(asked, baseline=str(former))
    again = bench(options)
    assert again.regressions == []  # one round on either side says nothing
    assert any(note.startswith("map (warm) is not judged by the baseline") for note in again.notes)
    with pytest.raises(UsageError, match="first_layers 1 there, not asked for here"):
        bench(replace(options, first_layers=None))
    write_shard(tmp_path / "model.safetensors", {"a": made("F32", 1000)})
    with pytest.raises(UsageError, match="the baseline is of another checkpoint"):
        bench(replace(options, path=str(tmp_path / "model.safetensors")))
    former.write_text("{}")
    with pytest.raises(InputError, match=r"former\.json"):
        bench(options)


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_shard(tmp_path / "model.safetensors", {"a": made("F32", 1000)})
    with pytest.raises(EnvironmentLacksError, match="cuda") as caught:
        bench(BenchOptions(str(tmp_path), device="cuda"))
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"rounds": 0}, "no such number of rounds: 0"),
        ({"caches": ()}, "no such cache state"),
        ({"caches": ("cold", "lukewarm")}, "no such cache state: 'cold, lukewarm'"),
        ({"first_layers": 0}, "at least one first layer"),
        ({"memory_fraction": 0.0}, "over 0, and 1 at most"),
        ({"memory_fraction": 0.5}, "for loads to a GPU"),
        ({"max_split_size_bytes": 64 * MIB}, "for loads to a GPU"),
        ({"modes": ("ring",)}, "no such mode on the host"),
        ({"rounds": 10_001}, "no such number of rounds: 10001"),
        ({"max_regression": -0.1}, "a share, 0 or more"),
        ({"max_regression": 0.1}, "needs a baseline"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, wish: dict[str, object], message: str) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("F32", 1000)})
    with pytest.raises(UsageError, match=message):
        bench(BenchOptions(str(tmp_path), **({"device": "cpu"} | wish)))  # type: ignore[arg-type]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        bench(BenchOptions(str(tmp_path / "nothing"), device="cpu"))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(FaultError):
        bench(BenchOptions(str(tmp_path), device="cpu"))


def test_a_stop_in_the_middle_of_a_load_leaves_no_process_behind(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("F32", 1000)})

    class StopOnceAChildRuns(Events):
        def raise_if_stopped(self) -> None:
            if children():
                raise StoppedError(signal.SIGINT)

    options = BenchOptions(str(tmp_path), device="cpu", modes=("buffered",), caches=("warm",), rounds=3)
    with pytest.raises(StoppedError):
        bench(options, StopOnceAChildRuns())
    assert children() == []
    assert [thread for thread in threading.enumerate() if thread.name.startswith("coldctl")] == []


def children() -> list[str]:
    """The processes that this one started and that were not waited for, from any of its threads."""
    return [
        pid
        for task in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
    ]
