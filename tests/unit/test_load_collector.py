"""Pausing Python's cycle collector: it is back on afterwards, whatever came in between."""

from __future__ import annotations

import gc
import threading

import pytest

from coldctl.loader.load import collector
from coldctl.loader.load.collector import collector_paused
from tests.interrupts import interrupted_everywhere
from tests.loads import PATIENCE_SECONDS


def paused() -> None:
    with collector_paused():
        assert not gc.isenabled()


def test_it_is_off_until_the_last_of_several_blocks_is_left() -> None:
    assert gc.isenabled()
    with collector_paused():
        paused()
        assert not gc.isenabled()
        thread = threading.Thread(target=paused)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert not gc.isenabled()
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        paused()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_interrupt_leaves_it_off() -> None:
    """Not even one where the block begins or ends; nor does it let a later block run with it on."""
    for number in interrupted_everywhere(paused, collector):
        assert gc.isenabled(), number
        paused()
        assert gc.isenabled(), number


def test_no_interrupt_of_a_block_lets_another_run_with_it_on() -> None:
    with collector_paused():
        for number in interrupted_everywhere(paused, collector):
            assert not gc.isenabled(), number
    assert gc.isenabled()
