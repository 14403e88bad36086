"""Waiting through interrupts, in signal handlers, and for as long as was asked for."""

from __future__ import annotations

import threading

import pytest

from coldctl.loader import latch
from coldctl.loader.latch import Latch, outlast
from tests.interrupts import interrupted_everywhere
from tests.loads import PATIENCE_SECONDS


def test_all_who_wait_go_on_when_it_opens_and_nobody_waits_any_more() -> None:
    door = Latch()
    through: list[bool] = []
    threads = [threading.Thread(target=lambda: through.append(door.wait(PATIENCE_SECONDS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not door.is_open
    assert through == []
    door.open()
    door.open()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert through == [True] * 8
    assert door.is_open
    assert door.wait()
    assert door.wait(0)


@pytest.mark.parametrize("timeout_seconds", [0, -1, 0.01])
def test_it_waits_no_longer_than_asked(timeout_seconds: float) -> None:
    assert Latch().wait(timeout_seconds) is False


def test_an_interrupted_wait_keeps_nobody_else_waiting() -> None:
    """Wherever the interrupt comes."""
    doors = [Latch()]
    for number in interrupted_everywhere(lambda: doors[-1].wait(0.001), latch):
        beside = threading.Thread(target=doors[-1].wait)
        beside.start()
        doors[-1].open()
        beside.join(PATIENCE_SECONDS)
        assert not beside.is_alive(), number
        doors.append(Latch())


def test_a_signal_handler_may_wait_for_what_its_thread_waits_for() -> None:
    """Wherever it comes."""
    doors = [Latch()]

    def handler() -> None:
        opening = threading.Thread(target=doors[-1].open)
        opening.start()
        assert doors[-1].wait(PATIENCE_SECONDS)
        opening.join()

    for number in interrupted_everywhere(lambda: doors[-1].wait(0.001), latch, handler=handler):
        assert doors[-1].is_open, number
        doors.append(Latch())


def test_what_interrupts_is_raised_when_the_waiting_is_over_and_only_the_first() -> None:
    given: list[BaseException | None] = []

    def wait(interrupt: BaseException | None) -> None:
        given.append(interrupt)
        if len(given) < 4:
            raise KeyboardInterrupt(len(given))

    with pytest.raises(KeyboardInterrupt) as caught:
        outlast(wait)
    assert [each and each.args for each in given] == [None, (1,), (1,), (1,)]
    assert caught.value.args == (1,)
    given.append(None)
    outlast(lambda _: None)
