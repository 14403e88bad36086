"""Processes that are forked while another thread loads: what it holds must not hold them."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import coldctl
from coldctl.errors import UsageError
from coldctl.loader.load import fill, stream
from coldctl.loader.load.collector import collector_paused
from coldctl.loader.load.loading import Loading
from coldctl.loader.syscalls import populate_write
from tests.filesystems import in_child
from tests.loads import MIB, PATIENCE_SECONDS, Gate, assert_same_as_the_files, save, save_mixed
from tests.tiny import made

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_cold_load_in_the_child_of_a_process_that_loads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_mixed(tmp_path)
    inside, may_go_on = threading.Event(), threading.Event()
    really = populate_write

    def held(address: int, nbytes: int) -> None:
        inside.set()
        may_go_on.wait(60)
        really(address, nbytes)

    def load_again() -> None:
        monkeypatch.setattr(fill, "populate_write", really)
        with coldctl.open(tmp_path) as checkpoint:
            assert_same_as_the_files(checkpoint.load(mode="direct"), tmp_path)

    monkeypatch.setattr(fill, "populate_write", held)
    with coldctl.open(tmp_path) as checkpoint:
        loading = threading.Thread(target=checkpoint.load, kwargs={"mode": "direct"})
        loading.start()
        try:
            assert inside.wait(60)
            in_child(load_again, prepare=lambda: None)
        finally:
            may_go_on.set()
            loading.join()


def test_the_collector_is_on_in_the_child_of_a_process_that_paused_it() -> None:
    def pause_again() -> bool:
        with collector_paused():
            assert not gc.isenabled()
        return gc.isenabled()

    assert gc.isenabled()
    with collector_paused():
        assert in_child(gc.isenabled, prepare=lambda: None)
        assert in_child(pause_again, prepare=lambda: None)
        assert not gc.isenabled()
    assert gc.isenabled()


LAYERS = {f"model.layers.{number}.mlp.up_proj.weight": made("U8", 2 * MIB, seed=number) for number in range(4)}
FIRST, *_, LAST = LAYERS


def soon() -> None:
    """A child that hangs is killed."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30)


@contextmanager
def half_loaded(folder: Path) -> Iterator[Loading]:
    """A handle of which the first layer is there; the thread that brings the others is held."""
    save(folder / "model.safetensors", LAYERS)
    gate = Gate(part=1)
    with coldctl.open(folder) as checkpoint:
        handle = checkpoint.load(first_layers=1, events=gate)
    assert gate.reached.wait(PATIENCE_SECONDS)
    try:
        yield handle
    finally:
        gate.open()
        handle.wait(PATIENCE_SECONDS)


ASKED: dict[str, Callable[[Loading], object]] = {
    "wait": lambda handle: handle.wait(),
    "wait a little": lambda handle: handle.wait(0.1),
    "cancel": lambda handle: handle.cancel(),
    "done": lambda handle: handle.done,
    "progress": lambda handle: handle.progress,
    "what is to come": lambda handle: handle[LAST],
    "on_done": lambda handle: handle.on_done(print),
    "on_tensor": lambda handle: handle.on_tensor(print),
    "leave": lambda handle: handle.__exit__(None, None, None),
}


def test_a_handle_in_a_fork_says_at_once_that_nothing_comes_there(tmp_path: Path) -> None:
    with half_loaded(tmp_path) as handle:

        def ask() -> list[str]:
            messages = []
            for name, asked in ASKED.items():
                with pytest.raises(UsageError) as caught:
                    asked(handle)
                messages.append(f"{name}: {caught.value.message}")
            assert set(handle.loaded) == {FIRST}
            assert FIRST in handle
            assert LAST not in handle
            assert handle[FIRST].numpy().tobytes() == LAYERS[FIRST].data
            with pytest.raises(LookupError), handle:
                raise LookupError
            return messages

        expected = [f"{name}: the load belongs to the process that began it, and ends there" for name in ASKED]
        assert in_child(ask, prepare=soon) == expected


def test_a_load_that_is_over_is_over_in_every_fork(tmp_path: Path) -> None:
    with half_loaded(tmp_path) as handle:
        pass

    def ask() -> bool:
        told: list[str] = []
        handle.on_tensor(lambda name, _: told.append(name))
        handle.on_done(lambda _: told.append("done"))
        handle.cancel()
        with handle:
            assert set(handle.wait()) == set(told[:-1]) == set(LAYERS)
        return told[-1] == "done" and handle.done

    assert in_child(ask, prepare=soon)


@pytest.mark.parametrize("left", ["exhausted", "closed", "dropped"])
def test_a_stream_in_a_fork_ends_with_what_had_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """Of batches of one tensor, while the thread may be loading the second."""
    monkeypatch.setattr(stream, "_FIRST_BATCH_BYTES", MIB)
    monkeypatch.setattr(stream, "_BATCH_BYTES", MIB)
    save(tmp_path / "model.safetensors", LAYERS)
    with coldctl.open(tmp_path) as checkpoint:
        tensors: Any = checkpoint.stream()
        assert next(tensors)[0] == FIRST

        def go_on() -> None:
            nonlocal tensors
            if left == "exhausted":
                with pytest.raises(UsageError, match="belongs to the process that began it"):
                    next(tensors)
            elif left == "closed":
                tensors.close()
            del tensors
            gc.collect()

        in_child(go_on, prepare=soon)
        assert [name for name, _ in tensors] == list(LAYERS)[1:]


def test_a_stream_that_nobody_has_begun_goes_in_a_fork(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", LAYERS)
    with coldctl.open(tmp_path) as checkpoint:
        tensors = checkpoint.stream()
        assert in_child(lambda: [name for name, _ in tensors], prepare=soon) == list(LAYERS)
        assert [name for name, _ in tensors] == list(LAYERS)
