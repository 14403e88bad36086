"""Tensors as they arrive: all of them in their order, in bounded memory, and nothing is left when it ends early."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coldctl
from coldctl.errors import ChangedError, StoppedError, UnreadableError
from coldctl.events import Events
from coldctl.loader import latch
from coldctl.loader.host.memory import PeakAnon
from coldctl.loader.load import stream as module
from coldctl.loader.load.stream import batches
from tests.interrupts import interrupted_everywhere
from tests.layouts import Size, file
from tests.loads import MIB, assert_given_back, assert_same, footprint, save, save_sparse
from tests.tiny import made
from tests.unit.test_source_reader import failing_preadv


@given(st.lists(st.sampled_from([0, 1, 100 * MIB, 31 * MIB, 32 * MIB, 33 * MIB, 300 * MIB]), max_size=20))
def test_batches_are_the_plan_in_order_and_none_is_larger_than_allowed(sizes: list[int]) -> None:
    wanted = file("a", 4096, *(Size("U8", nbytes) for nbytes in sizes))
    cut = [list(batch) for batch in batches(wanted)]
    assert [each for batch in cut for each in batch] == wanted
    limit_bytes = 32 * MIB
    for number, batch in enumerate(cut):
        nbytes = sum(each.nbytes for each in batch)
        assert len(batch) == 1 or nbytes <= limit_bytes
        assert batch is cut[-1] or nbytes + cut[number + 1][0].nbytes > limit_bytes
        limit_bytes = min(2 * limit_bytes, 256 * MIB)


def test_the_first_batches_are_small_so_that_the_first_tensor_comes_soon() -> None:
    wanted = file("a", 4096, *[Size("U8", 16 * MIB)] * 80)
    assert [len(batch) for batch in batches(wanted)] == [2, 4, 8, 16, 16, 16, 16, 2]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BATCH_BYTES", 100_000)
    monkeypatch.setattr(module, "_BATCH_BYTES", 400_000)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("order", ["file", "name", "layers", "attention-first"])
@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_all_tensors_come_once_in_order(
    folder: Path, expected: dict[str, torch.Tensor], order: Any, alloc: Any, framework: Any
) -> None:
    with coldctl.open(folder) as checkpoint:
        came = list(checkpoint.stream(order=order, alloc=alloc, framework=framework))
        assert [name for name, _ in came] == list(checkpoint.load(order=order))
    assert_same(dict(came), expected)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    "options", [{"verify": True}, {"exact": True}, {"tp": (1, 2)}, {"names": ["odd.byte", "nothing"]}]
)
def test_a_stream_takes_the_options_of_a_load(folder: Path, options: Any) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(**options)
        came = dict(checkpoint.stream(**options))
    assert list(came) == list(loaded)
    assert_same(came, loaded)


def test_nothing_to_stream(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        assert list(checkpoint.stream(names=[])) == []


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_stream_that_is_closed_early_gives_everything_back(folder: Path, alloc: Any, framework: Any) -> None:
    def look_at(tensors: int) -> None:
        with coldctl.open(folder) as checkpoint:
            came = checkpoint.stream(alloc=alloc, framework=framework)
            for _ in range(tensors):
                next(came)
            came.close()  # type: ignore[attr-defined]
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl")]

    look_at(3)
    before = footprint(folder)
    for tensors in (0, 1, 5, 20):
        look_at(tensors)
        assert_given_back(before, folder, within_bytes=4 * MIB)


@pytest.mark.usefixtures("small_batches")
def test_wherever_an_interrupt_comes_no_thread_and_no_file_is_left(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", {"a": made("U8", 100), "b": made("U8", 5)})
    with coldctl.open(tmp_path) as checkpoint:
        before = open_files_and_threads()
        for number in interrupted_everywhere(lambda: list(checkpoint.stream(framework="numpy")), module, latch):
            assert open_files_and_threads() == before, number


def open_files_and_threads() -> tuple[set[str], list[str]]:
    return set(os.listdir("/proc/self/fd")), [each.name for each in threading.enumerate() if "coldctl" in each.name]


def test_leaving_the_loop_ends_the_load(folder: Path) -> None:
    def first() -> str:
        with coldctl.open(folder) as checkpoint:
            for name, _ in checkpoint.stream():
                return name
        raise AssertionError

    assert first() == "model.embed_tokens.weight"
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl")]


class Collecting(Events):
    """Runs the collector on a thread that reads the second batch, once `dropped` is set."""

    def __init__(self) -> None:
        self.batches = 0
        self.dropped = threading.Event()

    def begin(self, *_: object) -> None:
        self.batches += 1

    def advance(self, *_: object) -> None:
        if self.batches == 2:
            assert self.dropped.wait(20)
            gc.collect()


class Cycle:
    """Holds what it is given until the collector runs."""

    def __init__(self, held: object) -> None:
        self.held, self.me = held, self


@pytest.mark.usefixtures("small_batches")
def test_a_stream_in_a_cycle_ends_though_the_collector_runs_on_its_own_reader(folder: Path) -> None:
    before = footprint(folder)
    events = Collecting()
    with coldctl.open(folder) as checkpoint:
        cycle = Cycle(came := checkpoint.stream(readers=2, events=events))
        next(came)
    del cycle, came
    events.dropped.set()
    deadline = time.monotonic() + 20
    while ours := [thread.name for thread in threading.enumerate() if thread.name.startswith("coldctl-")]:
        assert time.monotonic() < deadline, ours
        time.sleep(0.01)
    assert_given_back(before, folder)


def test_a_stream_that_is_never_begun_takes_nothing(folder: Path) -> None:
    before = footprint(folder)
    with coldctl.open(folder) as checkpoint:
        checkpoint.stream()
    assert_given_back(before, folder)


@pytest.mark.usefixtures("small_batches")
def test_a_tensor_that_was_dropped_is_gone_and_one_that_is_kept_stays(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", {f"t{n}": made("U8", 300_000, seed=n) for n in range(12)})
    dropped: list[weakref.ref[Any]] = []
    kept = []
    with coldctl.open(tmp_path) as checkpoint:
        for number, (_, tensor) in enumerate(checkpoint.stream(framework="numpy")):
            dropped.append(weakref.ref(tensor))
            if number == 5:
                kept.append(tensor)
            del tensor
            assert [n for n, ref in enumerate(dropped[:-1]) if ref() is not None] in ([], [5])
    assert kept[0].tobytes() == made("U8", 300_000, seed=5).data


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("alloc", ["arena", "per-tensor"])
def test_an_error_comes_where_the_tensor_would_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any
) -> None:
    path = tmp_path / "model.safetensors"
    save(path, {f"t{n}": made("U8", 300_000, seed=n) for n in range(6)}, boundary=4096)
    before = footprint(tmp_path)
    with coldctl.open(tmp_path) as checkpoint:
        bad = checkpoint.tensors["t3"].offset_bytes + 4096
        monkeypatch.setattr(os, "preadv", failing_preadv(bad))
        came: list[str] = []
        with pytest.raises(UnreadableError, match=f"cannot read model.safetensors at byte {bad}: Input") as caught:
            keep_names(checkpoint.stream(alloc=alloc), came)
    assert came == ["t0", "t1", "t2"]
    assert (caught.value.tensor, caught.value.file, caught.value.stage) == ("t3", "model.safetensors", "read")
    del caught
    assert_given_back(before, tmp_path, within_bytes=4 * MIB)


def keep_names(came: Iterator[tuple[str, Any]], names: list[str]) -> None:
    names += (name for name, _ in came)


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_changes_while_it_is_streamed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(path, {f"t{n}": made("U8", 300_000, seed=n) for n in range(40)})
    with coldctl.open(tmp_path) as checkpoint:
        came = checkpoint.stream()
        assert next(came)[0] == "t0"
        os.utime(path, ns=(1, 1))
        with pytest.raises(ChangedError, match="changed or replaced") as caught:
            list(came)
        assert (caught.value.file, caught.value.stage) == ("model.safetensors", "read")
        with pytest.raises(StopIteration):
            next(came)


def test_a_stream_stops_when_the_process_is_asked_to(folder: Path) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    with coldctl.open(folder) as checkpoint, pytest.raises(StoppedError):
        list(checkpoint.stream(events=Stopping()))


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_more_than_a_gibibyte_is_streamed_in_three_batches_of_memory(tmp_path: Path, framework: Any) -> None:
    """Batches of 32, 64, 128 MiB and then of 256: three of these at most, however slow the caller is."""
    path = tmp_path / "model.safetensors"
    save_sparse(path, {f"t{n:02}": 16 * MIB for n in range(96)})
    with coldctl.open(tmp_path) as checkpoint, PeakAnon() as peak:
        came = 0
        for name, tensor in checkpoint.stream(framework=framework):
            assert not tensor[::4096].any()
            came += tensor.nbytes
            if name == "t20":
                time.sleep(0.5)  # so that the thread which loads ahead has to wait
    assert came == 1536 * MIB
    assert 256 * MIB <= peak.peak_bytes <= 3 * 256 * MIB + 32 * MIB
