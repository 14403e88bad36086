"""Processes that are forked while another thread loads: what it holds must not hold them."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

import coldctl
from coldctl.loader.load import fill
from coldctl.loader.load.collector import collector_paused
from coldctl.loader.syscalls import populate_write
from tests.filesystems import in_child
from tests.loads import assert_same_as_the_files, save_mixed

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
