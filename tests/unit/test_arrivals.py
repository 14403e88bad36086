"""Tensors are told of once, when their last byte is there, and never before."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldctl.loader.load.arrivals import Arrivals
from coldctl.loader.load.place import place
from coldctl.loader.load.transfers import Transfer, transfers
from coldctl.loader.load.wanted import Wanted
from tests.layouts import Size, file, layouts

CHUNK_BYTES = 8192


def plan_of(wanted: Sequence[Wanted]) -> list[Transfer]:
    return list(transfers(place(wanted), CHUNK_BYTES))


@settings(max_examples=50)
@given(layouts([0, 1, 100, 5120], 8), st.randoms())
def test_in_whatever_order_transfers_end_each_tensor_is_told_once_after_its_last(
    wanted: list[Wanted], random: st.DataObject
) -> None:
    plan = plan_of(wanted)
    told: list[int] = []
    arrivals = Arrivals(len(wanted), plan)
    arrivals.tell(told.extend)
    waiting = {number: sum(each.first <= number < each.end for each in plan) for number in range(len(wanted))}
    assert told == [number for number, transfers_left in waiting.items() if not transfers_left]
    random.shuffle(plan)  # type: ignore[attr-defined]
    for each in plan:
        for number in range(each.first, each.end):
            waiting[number] -= 1
        arrivals.done(each)
        assert sorted(told) == [number for number, transfers_left in waiting.items() if not transfers_left]
    assert sorted(told) == list(range(len(wanted)))


def test_who_asks_late_is_told_of_what_is_there_and_then_of_the_rest() -> None:
    wanted = file("a", 4096, Size("U8", 0), Size("U8", 10_000), Size("U8", 10_000), Size("U8", 10_000))
    plan = plan_of(wanted)
    arrivals = Arrivals(4, plan)
    by_tensor = {number: [each for each in plan if each.first == number] for number in range(4)}
    for each in by_tensor[2]:
        arrivals.done(each)
    told: list[list[int]] = []
    arrivals.tell(lambda numbers: told.append(list(numbers)))
    assert told == [[0, 2]]
    for each in by_tensor[3] + by_tensor[1]:
        arrivals.done(each)
    assert told == [[0, 2], [3], [1]]


def test_when_each_came_is_on_the_clock_of_perf_counter_and_unknown_before() -> None:
    wanted = file("a", 4096, Size("U8", 0), Size("U8", 10_000), Size("U8", 100))
    first, second, third = plan_of(wanted)
    arrivals = Arrivals(3, [first, second, third])
    assert arrivals.seconds[0] == 0
    assert np.isnan(arrivals.seconds[1:]).all()
    begun_seconds = time.perf_counter()
    arrivals.done(first)
    assert np.isnan(arrivals.seconds[1:]).all()
    arrivals.done(second)
    assert begun_seconds <= arrivals.seconds[1] <= time.perf_counter()
    assert np.isnan(arrivals.seconds[2])
    arrivals.done(third)
    assert arrivals.seconds[1] <= arrivals.seconds[2] <= time.perf_counter()


def test_threads_are_told_of_one_call_at_a_time() -> None:
    wanted = file("a", 4096, *[Size("U8", 20_000)] * 200)
    plan = plan_of(wanted)
    arrivals = Arrivals(200, plan)
    told: Counter[int] = Counter()
    inside = threading.Semaphore(1)

    def arrived(numbers: Sequence[int]) -> None:
        assert inside.acquire(blocking=False), "two calls at once"
        time.sleep(0)
        told.update(numbers)
        inside.release()

    arrivals.tell(arrived)
    failures: list[BaseException] = []

    def work(part: Sequence[Transfer]) -> None:
        try:
            for each in part:
                arrivals.done(each)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(plan[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert told == Counter(dict.fromkeys(range(200), 1))


def test_what_the_told_one_raises_comes_out() -> None:
    wanted = file("a", 4096, Size("U8", 10))
    arrivals = Arrivals(1, plan_of(wanted))

    def arrived(_: Sequence[int]) -> None:
        raise ValueError("not now")

    arrivals.tell(arrived)
    with pytest.raises(ValueError, match="not now"):
        arrivals.done(plan_of(wanted)[0])
