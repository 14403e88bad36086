"""A load of which the first layers come first: what is there is whole, what is not is said, and how it ends is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coldctl
from coldctl.errors import CancelledError, ChangedError, ColdctlError, NotLoadedError, UsageError
from coldctl.events import Events
from coldctl.loader import latch
from coldctl.loader.load import loading
from coldctl.loader.load.loading import Loading, Progress
from tests.interrupts import interrupted_everywhere
from tests.loads import MIB, PATIENCE_SECONDS, Gate, assert_given_back, assert_same, bits, footprint, save
from tests.tiny import Made, made

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYERS = 3


def of_layer(number: int) -> dict[str, Made]:
    at = f"model.layers.{number}"
    return {
        f"{at}.self_attn.q_proj.weight": made("U8", 3 * MIB, seed=number),
        f"{at}.mlp.up_proj.weight": made("BF16", 3, 300_000, seed=number),
        f"{at}.empty": made("F32", 0, seed=number),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of 5 MiB, in the file in the opposite of their order."""
    made_in = tmp_path_factory.mktemp("layers")
    tensors = {HEAD: made("F32", 1000), NORM: made("BF16", 64)}
    for number in reversed(range(LAYERS)):
        tensors |= of_layer(number)
    save(made_in / "model.safetensors", tensors | {EMBEDDING: made("F16", MIB)})
    return made_in


def test_a_handle_offers_nothing_that_only_the_load_may_call() -> None:
    offered = {name for name in dir(Loading) if not name.startswith("_")}
    assert offered == {"cancel", "done", "loaded", "on_done", "on_tensor", "progress", "wait"}


FIRST = {EMBEDDING, *of_layer(0)}


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("checks", [{}, {"verify": True}, {"exact": True}])
def test_the_first_layers_are_there_and_the_rest_is_not(
    folder: Path, expected: dict[str, torch.Tensor], alloc: Any, checks: Any
) -> None:
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, alloc=alloc, events=gate, **checks)
    assert gate.reached.wait(PATIENCE_SECONDS)
    empty = set() if checks else {f"model.layers.{number}.empty" for number in range(LAYERS)}
    there = handle.loaded
    assert FIRST <= set(there) <= FIRST | empty
    assert_same(there, {name: expected[name] for name in there})
    assert not handle.done
    assert handle.progress == Progress(sum(len(bits(tensor)) for tensor in there.values()), total_of(expected))
    for name in expected:
        assert (name in handle) is (name in there)
        if name not in there:
            with pytest.raises(NotLoadedError, match=f"{name} has not arrived"):
                handle[name]
    with pytest.raises(KeyError, match="no such"):
        handle["no such"]
    with pytest.raises(TimeoutError, match=r"not over after 0.01 s"):
        handle.wait(0.01)
    gate.open()
    loaded = handle.wait(PATIENCE_SECONDS)
    assert_same(loaded, expected)
    assert handle.done
    assert handle.wait() is loaded
    assert handle.progress == Progress(total_of(expected), total_of(expected))
    assert all(handle[name] is loaded[name] for name in expected)
    assert loaded.report.first_layers_seconds is not None
    assert 0 < loaded.report.first_layers_seconds <= loaded.report.seconds
    assert loaded.report.order == "layers"


def total_of(tensors: dict[str, torch.Tensor]) -> int:
    return sum(len(bits(tensor)) for tensor in tensors.values())


@pytest.mark.parametrize(
    ("first_layers", "first"),
    [
        (0, {EMBEDDING}),
        (2, FIRST | set(of_layer(1))),
        (LAYERS, FIRST | set(of_layer(1)) | set(of_layer(2))),
    ],
)
def test_as_many_layers_as_are_asked_for(folder: Path, first_layers: int, first: set[str]) -> None:
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint, checkpoint.load(first_layers=first_layers, events=gate) as handle:
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert {name for name in handle.loaded if "empty" not in name} == {n for n in first if "empty" not in n}
        gate.open()
    assert handle.done


def test_another_order_holds_within_the_first_layers_and_within_the_rest(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        by_name = list(checkpoint.load(first_layers=1, order="name").wait())
        by_offset = list(checkpoint.load(first_layers=1, order="file").wait())
    assert by_name[:4] == sorted(FIRST)
    assert by_name[4:] == sorted(by_name[4:])
    assert by_offset[-1] == NORM or by_offset[4] == HEAD
    assert set(by_offset[:4]) == FIRST


def test_a_checkpoint_without_layers_is_there_at_once(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", {"a": made("U8", 100), "b": made("U8", 5)})
    with coldctl.open(tmp_path) as checkpoint:
        handle = checkpoint.load(first_layers=1)
        assert set(handle.loaded) == {"a", "b"}
        assert set(handle.wait()) == {"a", "b"}


def test_no_tensor_is_ever_half_there(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """Arenas hold zeros at first: whoever sees a tensor before its last byte sees other bits than the file's."""
    whole = {name: bits(tensor) for name, tensor in expected.items()}
    seen: Counter[str] = Counter()
    with coldctl.open(folder) as checkpoint:
        for _ in range(5):
            handle = checkpoint.load(first_layers=0, framework="numpy")
            while not handle.done:
                for name in whole:
                    if name in handle:
                        assert handle[name].tobytes() == whole[name], name
                        seen[name] += 1
                time.sleep(0)
            handle.wait()
    assert seen[EMBEDDING]


def test_a_tensor_of_which_chunks_are_missing_is_not_there(tmp_path: Path) -> None:
    """The rest is one tensor of 32 MiB and 8 chunks; threads stop after their first, and two begin."""
    gate = Gate(part=1, after_a_chunk=True)
    save(tmp_path / "model.safetensors", {EMBEDDING: made("U8", 100), "model.layers.0.w": made("U8", 32 * MIB)})
    with coldctl.open(tmp_path) as checkpoint, checkpoint.load(first_layers=0, events=gate) as handle:
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert set(handle.loaded) == {EMBEDDING}
        assert handle.progress.done_bytes == 100
        gate.open()
    assert set(handle.loaded) == {EMBEDDING, "model.layers.0.w"}


def test_callbacks_get_every_tensor_once_and_the_end(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    gate = Gate(part=1)
    got: list[tuple[str, Any]] = []
    ends: list[bool] = []
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)
    handle.on_tensor(lambda name, tensor: got.append((name, tensor)))
    assert {name for name, _ in got} >= FIRST
    handle.on_done(lambda ended: ends.append(ended.done))
    assert ends == []
    gate.open()
    loaded = handle.wait()
    assert Counter(name for name, _ in got) == Counter(dict.fromkeys(expected, 1))
    assert_same(dict(got), expected)
    assert all(loaded[name] is tensor for name, tensor in got)
    wait_until(lambda: ends == [True])
    handle.on_tensor(lambda name, _: ends.append(name in expected))
    assert ends == [True] * (1 + len(expected))
    handle.on_done(lambda ended: ends.append(ended is handle))
    assert ends == [True] * (2 + len(expected))


def wait_until(holds: Any) -> None:
    deadline_seconds = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline_seconds
        time.sleep(0.001)


def test_what_a_callback_raises_fails_the_load(folder: Path) -> None:
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)

    def refuse(name: str, _: Any) -> None:
        if name == HEAD:
            raise ValueError("not this one")

    ends: list[Loading] = []
    handle.on_done(ends.append)
    handle.on_tensor(refuse)
    gate.open()
    with pytest.raises(ValueError, match="not this one"):
        handle.wait()
    wait_until(lambda: ends == [handle])
    with pytest.raises(ValueError, match="not this one"):
        handle[EMBEDDING]


def test_a_callback_at_the_end_that_raises_keeps_no_other_from_being_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda caught: raised.append(caught.exc_value))
    gate, ends = Gate(part=1), []
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)

    def explode(_: Loading) -> None:
        raise ValueError("at the end")

    handle.on_done(lambda _: ends.append("first"))
    handle.on_done(explode)
    handle.on_done(lambda _: ends.append("last"))
    gate.open()
    assert handle.wait()
    wait_until(lambda: len(raised) == 1)
    assert ends == ["first", "last"]
    assert str(raised[0]) == "at the end"


def test_a_load_that_is_cancelled_ends_and_gives_its_memory_back(
    folder: Path, expected: dict[str, torch.Tensor]
) -> None:
    def cancelled(alloc: Any) -> tuple[Loading, torch.Tensor]:
        gate = Gate(part=1, after_a_chunk=True)
        with coldctl.open(folder) as checkpoint:
            handle = checkpoint.load(first_layers=1, alloc=alloc, events=gate)
        kept = handle[EMBEDDING].clone()
        assert gate.reached.wait(PATIENCE_SECONDS)
        canceller = threading.Thread(target=handle.cancel)
        canceller.start()
        canceller.join(0.05)
        assert canceller.is_alive()  # it returns when the load has ended, and the gate holds that
        gate.open()
        canceller.join(PATIENCE_SECONDS)
        assert handle.done
        for ask in (handle.wait, lambda: handle[EMBEDDING], lambda: handle[HEAD]):
            with pytest.raises(CancelledError, match="the load was cancelled"):
                ask()
        assert handle.loaded == {}
        handle.cancel()
        return handle, kept

    for alloc in ("arena", "per-tensor", "map"):
        cancelled(alloc)
        before = footprint(folder)
        kept = [cancelled(alloc) for _ in range(4)]
        assert_given_back(before, folder, within_bytes=4 * 2 * MIB + 16 * MIB)
        assert all(bits(tensor) == bits(expected[EMBEDDING]) for _, tensor in kept)


def test_tensors_that_were_taken_before_a_cancel_stay_good(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    gate = Gate(part=1, after_a_chunk=True)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)
    taken = handle.loaded
    assert gate.reached.wait(PATIENCE_SECONDS)
    threading.Timer(0.02, gate.open).start()
    handle.cancel()
    assert_same(taken, {name: expected[name] for name in taken})


def test_cancel_after_the_end_changes_nothing(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1)
        handle.wait()
        handle.cancel()
    assert_same(handle.wait(), expected)


def test_a_callback_may_cancel_and_may_not_wait(folder: Path) -> None:
    gate, refused = Gate(part=1), []
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)
    there = handle.loaded

    def enough(name: str, _: Any) -> None:
        if name in there:
            return
        try:
            handle.wait()
        except UsageError as error:
            refused.append(error)
        handle.cancel()

    handle.on_tensor(enough)
    gate.open()
    with pytest.raises(CancelledError):
        handle.wait(PATIENCE_SECONDS)
    assert refused


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("checks", [{}, {"verify": True}, {"exact": True}])
def test_a_cancel_counts_when_the_last_tensor_is_there_and_the_load_not_over(
    folder: Path, alloc: Any, checks: Any
) -> None:
    gate, asked = Gate(part=1), []
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, alloc=alloc, events=gate, **checks)

    def at_the_last(_: str, __: Any) -> None:
        if len(handle.loaded) == 3 * LAYERS + 3 and not handle.done:
            asked.append(True)
            handle.cancel()

    handle.on_tensor(at_the_last)
    gate.open()
    with pytest.raises(CancelledError, match="the load was cancelled"):
        handle.wait(PATIENCE_SECONDS)
    assert asked
    assert handle.loaded == {}


@pytest.mark.parametrize("asked", ["progress", "done", "loaded", "wait", "cancel", "on_tensor", "on_done"])
def test_a_signal_handler_may_ask_and_cancel_wherever_it_comes(tmp_path: Path, asked: str) -> None:
    """In the middle of the same and of every other question, for a load that goes on meanwhile."""
    save(tmp_path / "model.safetensors", of_layer(0) | of_layer(1))
    handle, gate = begin(tmp_path)

    def ask() -> None:
        with suppress(TimeoutError, CancelledError):
            handle.wait(0.001) if asked == "wait" else None
            handle.on_tensor(lambda _, __: None) if asked == "on_tensor" else None
            handle.on_done(lambda _: None) if asked == "on_done" else None
            handle.cancel() if asked == "cancel" else getattr(handle, asked)

    def handler() -> None:
        assert handle.progress.total_bytes > 0
        assert handle.loaded.keys() <= {*of_layer(0), *of_layer(1)}
        gate.open()
        handle.cancel()
        assert handle.done

    if asked == "cancel":  # which waits
        gate.open()
    for number in interrupted_everywhere(ask, loading, latch, handler=handler):
        assert handle.done, number
        with suppress(CancelledError):
            handle.wait(0)
        handle, gate = begin(tmp_path)
        if asked == "cancel":
            gate.open()
    gate.open()


def begin(folder: Path) -> tuple[Loading, Gate]:
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate, framework="numpy")
    assert gate.reached.wait(PATIENCE_SECONDS)
    return handle, gate


def test_every_callback_is_called_once_wherever_the_end_comes(tmp_path: Path) -> None:
    """The load ends at every step of adding them."""
    save(tmp_path / "model.safetensors", of_layer(0) | of_layer(1))
    handle, gate = begin(tmp_path)
    told: Counter[str] = Counter()

    def add() -> None:
        handle.on_tensor(lambda name, _: told.update([name]))
        handle.on_done(lambda _: told.update(["done"]))

    def finish() -> None:
        gate.open()
        for thread in threading.enumerate():
            if thread.name == "coldctl-loading":
                thread.join(PATIENCE_SECONDS)

    for number in interrupted_everywhere(add, loading, handler=finish):
        assert told == Counter([*of_layer(0), *of_layer(1), "done"]), number
        handle, gate = begin(tmp_path)
        told.clear()
    gate.open()


def test_leaving_the_block_waits_and_an_error_in_it_cancels(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        with checkpoint.load(first_layers=0) as handle:
            pass
        assert handle.done
        assert len(handle.wait()) == len(handle.loaded)

        gate = Gate(part=1)
        handle = checkpoint.load(first_layers=0, events=gate)
        threading.Timer(0.1, gate.open).start()
        with pytest.raises(ZeroDivisionError), handle:
            raise ZeroDivisionError
        with pytest.raises(CancelledError):
            handle.wait()


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
@pytest.mark.parametrize("change", ["cut", "touched", "replaced"])
def test_a_file_that_changes_in_between_fails_the_rest(tmp_path: Path, alloc: Any, change: str) -> None:
    path, gate = tmp_path / "model.safetensors", Gate(part=1)
    save(path, of_layer(0) | of_layer(1), boundary=4096)
    with coldctl.open(tmp_path) as checkpoint:
        handle = checkpoint.load(first_layers=1, alloc=alloc, events=gate)
    assert gate.reached.wait(PATIENCE_SECONDS)
    if change == "cut":
        os.truncate(path, path.stat().st_size - 100_000)
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        other = tmp_path / "other"
        other.write_bytes(path.read_bytes())
        os.replace(other, path)
    gate.open()
    with pytest.raises(ChangedError, match="changed or replaced") as caught:
        handle.wait()
    assert (caught.value.file, caught.value.stage) == ("model.safetensors", "read")
    assert caught.value.tensor in of_layer(1)
    with pytest.raises(ChangedError):
        handle["model.layers.0.mlp.up_proj.weight"]
    assert handle.loaded == {}


def test_a_failure_of_the_first_layers_is_raised_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(path, of_layer(0) | of_layer(1))
    with coldctl.open(tmp_path) as checkpoint:
        path.write_bytes(b"")
        with pytest.raises(ChangedError) as caught:
            checkpoint.load(first_layers=1)
    assert caught.value.stage == "read"


def test_many_threads_may_ask(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, framework="numpy", events=gate)
    whole = {name: bits(tensor) for name, tensor in expected.items()}
    wrong: list[str] = []

    def ask(names: Iterator[str]) -> None:
        for name in names:
            try:
                if handle[name].tobytes() != whole[name]:
                    wrong.append(name)
            except NotLoadedError:
                pass
            except ColdctlError as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=ask, args=(iter(list(expected) * 3),)) for _ in range(4)]
    threads += [threading.Thread(target=lambda: handle.wait(PATIENCE_SECONDS)) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert isinstance(handle.wait()[HEAD], np.ndarray)


def test_events_of_the_caller_see_both_parts_and_every_byte(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    class Seen(Events):
        def __init__(self) -> None:
            self.begun: list[tuple[str, int]] = []
            self.advanced = 0
            self.ended = 0
            self._lock = threading.Lock()

        def begin(self, label: str, total_bytes: int) -> None:
            self.begun.append((label, total_bytes))

        def advance(self, nbytes: int) -> None:
            with self._lock:
                self.advanced += nbytes

        def end(self) -> None:
            self.ended += 1

    seen = Seen()
    with coldctl.open(folder) as checkpoint:
        checkpoint.load(first_layers=1, events=seen).wait()
    first = sum(len(bits(expected[name])) for name in FIRST)
    assert seen.begun == [("loading", first), ("loading", total_of(expected) - first)]
    assert (seen.advanced, seen.ended) == (total_of(expected), 2)


@pytest.mark.parametrize("asks", ["cancel", "wait"])
@pytest.mark.parametrize("where", ["events", "transform"])
def test_what_the_load_calls_may_cancel_it_and_may_not_wait_for_it(folder: Path, asks: str, where: str) -> None:
    """Either way the load ends, where it would wait for itself for ever."""
    handles: list[Loading] = []
    asked: list[str] = []

    def ask() -> None:
        if handles and not asked:
            asked.append(asks)
            getattr(handles[0], asks)()

    class Asking(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            if where == "events":
                time.sleep(0.01)
                ask()

    class Transforming:
        def companions(self, name: str, names: object) -> tuple[str, ...]:  # noqa: ARG002
            return ()

        def apply(self, name: str, tensor: torch.Tensor, companions: object) -> torch.Tensor:  # noqa: ARG002
            if where == "transform":
                time.sleep(0.01)
                ask()
            return tensor

    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=Asking(), transform=Transforming())
        handles.append(handle)
        with pytest.raises(CancelledError if asks == "cancel" else UsageError):
            handle.wait(PATIENCE_SECONDS)
    assert asked == [asks]


LEFT_RUNNING = """
import os, sys, time
import coldctl
if sys.argv[2] == "stream":
    stream = coldctl.open(sys.argv[1]).stream(transform=coldctl.Dequantise("BF16"))
    next(stream)
else:
    handle = coldctl.open(sys.argv[1]).load(first_layers=1, transform=coldctl.Dequantise("BF16"))
time.sleep(int(sys.argv[3]) / 100)
"""


@pytest.mark.parametrize("kind", ["load", "stream"])
def test_the_interpreter_ends_cleanly_while_a_load_goes_on(tmp_path: Path, kind: str) -> None:
    """A daemon thread that Python stops inside torch would take the process down with SIGABRT."""
    tensors: dict[str, Made] = {}
    for layer in range(24):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        tensors |= {name: made("F8_E4M3", 1024, 1024, seed=layer), f"{name}_scale": made("F32")}
    save(tmp_path / "model.safetensors", tensors)
    for pause in range(4):
        command = [sys.executable, "-c", LEFT_RUNNING, str(tmp_path), kind, str(pause)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
