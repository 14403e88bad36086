"""The pool: every item once, begun in order, an error that stops all, and a width that follows throughput."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from coldctl.errors import EnvironmentLacksError, StoppedError
from coldctl.events import NULL, Events
from coldctl.loader import latch, pool
from coldctl.loader.host.memory import read_kib
from coldctl.loader.latch import Latch
from coldctl.loader.pool import Worker, default_streams_cap, share_out
from coldctl.loader.width import Width
from tests.filesystems import in_child
from tests.interrupts import interrupted_everywhere

MIB = 1 << 20
PATIENCE_SECONDS = 20


def workers(do: Callable[[int], Iterator[int]]) -> Callable[[], contextlib.AbstractContextManager[Worker[int]]]:
    @contextmanager
    def make() -> Iterator[Worker[int]]:
        yield do

    return make


class Counting(Events):
    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def advance(self, nbytes: int) -> None:
        with self._lock:
            self.bytes += nbytes


@pytest.mark.parametrize("cap", [1, 2, 8])
def test_every_item_is_done_once_and_begun_in_order(cap: int) -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def source() -> Iterator[int]:
        for item in range(500):
            with lock:
                begun.append(item)
            yield item

    done: list[int] = []

    def do(item: int) -> Iterator[int]:
        done.append(item)
        yield 3

    events = Counting()
    most = share_out(source(), workers(do), events, first=1, cap=cap)
    assert begun == list(range(500))
    assert sorted(done) == list(range(500))
    assert events.bytes == 1500
    assert 1 <= most <= cap


def test_nothing_to_do_is_no_error() -> None:
    def do(item: int) -> Iterator[int]:
        raise AssertionError(item)
        yield 0

    assert share_out([], workers(do), NULL, first=2, cap=4) <= 2


def test_the_first_threads_are_as_many_as_asked_for_and_never_over_the_cap() -> None:
    together = threading.Barrier(2)

    def do(_: int) -> Iterator[int]:
        together.wait(PATIENCE_SECONDS)
        yield 1

    assert share_out([1, 2], workers(do), NULL, first=2, cap=8) == 2
    assert share_out([1, 2], workers(lambda _: iter([1])), NULL, first=2, cap=1) == 1


def test_never_more_threads_work_at_once_than_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    class Eager(Width):
        def record(self, nbytes: int, now_seconds: float) -> bool:  # noqa: ARG002
            self.target = min(self.target + 1, 3)
            return True

    monkeypatch.setattr(pool, "Width", Eager)
    working, most_seen = 0, 0
    lock = threading.Lock()

    def do(_: int) -> Iterator[int]:
        nonlocal working, most_seen
        with lock:
            working += 1
            most_seen = max(most_seen, working)
        time.sleep(0.001)
        with lock:
            working -= 1
        yield 1

    assert share_out(range(100), workers(do), NULL, first=2, cap=3) == 3
    assert most_seen <= 3


def test_the_first_error_stops_all_threads_between_two_pieces_and_is_raised() -> None:
    failed = threading.Event()
    pieces_after: list[int] = []
    items: list[int] = []

    def do(item: int) -> Iterator[int]:
        items.append(item)
        if item == 0:
            failed.set()
            raise ValueError("the first item")
        failed.wait(PATIENCE_SECONDS)
        for piece in range(10_000):
            pieces_after.append(piece)
            time.sleep(0.001)
            yield 1

    with pytest.raises(ValueError, match="the first item"):
        share_out(range(100), workers(do), NULL, first=2, cap=2)
    assert len(pieces_after) < 10_000
    assert len(items) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl-")]


def test_an_error_while_a_worker_is_made_or_left_is_raised() -> None:
    @contextmanager
    def unmakable() -> Iterator[Worker[int]]:
        raise OSError("no buffer")
        yield

    @contextmanager
    def changed_meanwhile() -> Iterator[Worker[int]]:
        yield lambda _: iter([1])
        raise ValueError("changed")

    with pytest.raises(OSError, match="no buffer"):
        share_out([1], unmakable, NULL, first=1, cap=1)
    with pytest.raises(ValueError, match="changed"):
        share_out([1], changed_meanwhile, NULL, first=1, cap=1)


def test_an_error_of_the_items_is_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no second item")

    with pytest.raises(LookupError, match="no second item"):
        share_out(items(), workers(lambda _: iter([1])), NULL, first=2, cap=2)


def test_a_request_to_stop_comes_out_as_an_error() -> None:
    class Stopped(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(signal.SIGTERM)

    done: list[int] = []

    def do(item: int) -> Iterator[int]:
        done.append(item)
        yield 1

    with pytest.raises(StoppedError) as caught:
        share_out(range(1000), workers(do), Stopped(), first=2, cap=2)
    assert caught.value.exit_code == 143
    assert len(done) <= 2


def test_an_interrupted_caller_waits_for_its_threads() -> None:
    """Else they would go on writing to descriptors that the caller closes."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    begun, ended = threading.Event(), threading.Event()

    def do(_: int) -> Iterator[int]:
        begun.set()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        ended.set()
        yield 1

    try:
        with pytest.raises(KeyboardInterrupt):
            share_out([1, 2, 3], workers(do), NULL, first=1, cap=1)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert begun.is_set()
    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl-")]


def test_a_caller_who_is_interrupted_again_and_again_waits_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hears of the first interrupt."""
    begun, five, may_end, ended = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    really, interrupts, stops = Latch.wait, itertools.count(1), list[bool]()

    def interrupted(self: Latch, timeout_seconds: float | None = None) -> bool:
        assert begun.wait(PATIENCE_SECONDS)
        if (number := next(interrupts)) <= 5:
            if number == 5:
                five.set()
            raise KeyboardInterrupt(number)
        may_end.set()
        return really(self, timeout_seconds)

    def do(_: int) -> Iterator[int]:
        begun.set()
        five.wait(PATIENCE_SECONDS)
        assert may_end.wait(PATIENCE_SECONDS)
        ended.set()
        yield 1

    monkeypatch.setattr(Latch, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        share_out([1, 2, 3], workers(do), NULL, first=1, cap=1, interrupted=lambda: stops.append(True))
    assert ended.is_set()
    assert caught.value.args == (1,)
    assert len(stops) == 5


def test_wherever_an_interrupt_comes_no_thread_is_left_at_work() -> None:
    """One place after the other, in the caller's thread."""
    at_work = 0
    lock = threading.Lock()

    @contextmanager
    def make() -> Iterator[Worker[int]]:
        nonlocal at_work
        with lock:
            at_work += 1
        yield lambda _: iter([1, 1])
        time.sleep(0.002)
        with lock:
            at_work -= 1

    for number in interrupted_everywhere(lambda: share_out(range(4), make, NULL, first=2, cap=2), pool, latch):
        with lock:
            assert at_work == 0, number


def test_an_interrupt_that_breaks_a_lock_of_python_is_still_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does while `Thread.start` takes its condition's lock back."""

    def start(_: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        share_out([1], workers(lambda _: iter([1])), NULL, first=1, cap=1)


def test_no_room_for_a_thread_is_told_while_another_error_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        raise LookupError
    except LookupError:
        with pytest.raises(EnvironmentLacksError, match="cannot start a thread"):
            share_out([1], workers(lambda _: iter([1])), NULL, first=1, cap=1)


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_a_thread_is_started_ends_all(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """It may come before the thread begins, or after."""
    really, calls = threading.Thread.start, itertools.count()

    def start(self: threading.Thread) -> None:
        interrupted = self.name.startswith("coldctl-") and next(calls) == 1
        if begun or not interrupted:
            really(self)
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        share_out(range(100), workers(lambda _: iter([1])), NULL, first=3, cap=3)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl-")]


def test_a_narrower_pool_still_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one thread is too many, exactly one goes, even while it takes its time to leave."""

    class Narrowing(Width):
        def record(self, nbytes: int, now_seconds: float) -> bool:  # noqa: ARG002
            self.target = 1
            return True

    monkeypatch.setattr(pool, "Width", Narrowing)
    done: list[int] = []
    lock = threading.Lock()
    started = threading.Barrier(2)
    leaving: list[float] = []

    @contextmanager
    def make() -> Iterator[Worker[int]]:
        started.wait(PATIENCE_SECONDS)

        def do(item: int) -> Iterator[int]:
            with lock:
                done.append(item)
            yield 1

        yield do
        leaving.append(time.monotonic())
        time.sleep(0.1)

    share_out(range(2000), make, NULL, first=2, cap=2)
    assert sorted(done) == list(range(2000))


def test_fewer_threads_do_when_the_system_gives_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scarce(threading.Thread):
        left = 1

        def start(self) -> None:
            if Scarce.left == 0:
                raise RuntimeError("can't start new thread")
            Scarce.left -= 1
            super().start()

    monkeypatch.setattr(threading, "Thread", Scarce)
    done: list[int] = []

    def do(item: int) -> Iterator[int]:
        done.append(item)
        yield 1

    assert share_out(range(10), workers(do), NULL, first=2, cap=4) == 1
    assert done == list(range(10))
    with pytest.raises(EnvironmentLacksError, match="cannot start a thread"):
        share_out(range(10), workers(do), NULL, first=2, cap=4)


def test_a_thread_whose_stack_finds_no_room_is_an_error_that_says_both_limits() -> None:
    """Python says the same of a limit of processes and of one of memory."""

    def no_room() -> tuple[str, str]:
        threading.stack_size(256 * MIB)
        with pytest.raises(EnvironmentLacksError, match="can't start new thread") as caught:
            share_out([1], workers(lambda _: iter([1])), NULL, first=1, cap=1)
        return caught.value.message, str(caught.value.hint)

    def limit() -> None:
        used = read_kib("/proc/self/status", "VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (used + 128 * MIB, resource.RLIM_INFINITY))

    message, hint = in_child(no_room, prepare=limit)
    assert message == "cannot start a thread: can't start new thread"
    assert "ulimit -u" in hint
    assert "ulimit -v" in hint


def test_the_cap_follows_the_cpus_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, cap in ((1, 2), (2, 4), (4, 8), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        assert default_streams_cap() == cap


class TestWidth:
    """Rates are set by made-up clocks: eight pieces a thread over each eighth of a second."""

    def after(self, width: Width, *rates: int) -> list[int]:
        """The widths after trials in which the threads together did so many bytes in an eighth of a second."""
        width.record(0, 0.0)
        targets = []
        for number, nbytes in enumerate(rates):
            pieces = 8 * width.target
            for piece in range(1, pieces + 1):
                width.record(nbytes * piece // pieces - nbytes * (piece - 1) // pieces, (number + piece / pieces) / 8)
            targets.append(width.target)
        return targets

    def test_it_starts_with_what_is_asked_for_or_the_cap(self) -> None:
        assert Width(2, 8).target == 2
        assert Width(1, 8).target == 1
        assert Width(2, 1).target == 1

    def test_it_widens_while_a_thread_more_brings_a_tenth_more(self) -> None:
        assert self.after(Width(1, 8), 1000, 2000, 2900, 3300) == [2, 3, 4, 5]

    def test_a_thread_that_brings_less_is_taken_away_for_good(self) -> None:
        assert self.after(Width(2, 8), 1000, 1090, 1000, 5000, 9000) == [3, 2, 2, 2, 2]

    def test_a_single_thread_stays_single_when_a_second_makes_it_slower(self) -> None:
        assert self.after(Width(1, 8), 1000, 900, 1000, 100) == [2, 1, 1, 1]

    def test_it_never_passes_its_cap(self) -> None:
        assert self.after(Width(2, 4), 100, 200, 400, 800, 1600) == [3, 4, 4, 4, 4]

    def test_it_judges_only_after_50_ms(self) -> None:
        width = Width(1, 8)
        width.record(0, 10.0)
        assert not any(width.record(MIB, 10 + n / 1000) for n in range(1, 49))
        assert width.record(MIB, 10.06)
        assert width.target == 2

    def test_it_judges_only_after_eight_pieces_a_thread(self) -> None:
        width = Width(2, 8)
        width.record(0, 10.0)
        assert not any(width.record(MIB, 10.0 + n) for n in range(1, 16))
        assert width.record(MIB, 26.0)
        assert width.target == 3
