"""Tensors are handed out once, in order, with what their transform needs, and not kept longer than that."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.loader.load.handing import Handing


class Sum:
    """Adds to a tensor all those whose names are its own and something more: `a` gets `a.x` and `a.y`."""

    def companions(self, name: str, names: Container[str]) -> tuple[str, ...]:
        return tuple(other for other in (f"{name}.x", f"{name}.y", "all") if other in names and other != name)

    def apply(self, name: str, tensor: Any, companions: Mapping[str, Any]) -> Any:
        assert set(companions) <= {f"{name}.x", f"{name}.y", "all"}
        return sum(companions.values(), start=tensor)


def test_without_a_transform_tensors_come_in_their_order_however_they_arrive() -> None:
    handing = Handing(["a", "b", "c"], None)
    assert list(handing.arrive({"c": 3, "b": 2})) == []
    assert list(handing.arrive({"a": 1})) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_tensor_waits_for_its_companions() -> None:
    handing = Handing(["a", "a.x", "b", "a.y"], Sum())
    assert list(handing.arrive({"a": 1})) == []
    assert list(handing.arrive({"a.x": 10, "b": 2})) == []
    assert list(handing.arrive({"a.y": 100})) == [("a", 111), ("a.x", 10), ("b", 2), ("a.y", 100)]


def test_companions_that_are_not_loaded_are_not_waited_for() -> None:
    assert list(Handing(["a", "a.x"], Sum()).arrive({"a": 1, "a.x": 10})) == [("a", 11), ("a.x", 10)]
    assert list(Handing(["a"], Sum()).arrive({"a": 1})) == [("a", 1)]


names = st.permutations(["a", "a.x", "a.y", "b", "b.x", "c", "all"])


@given(names, names, st.integers(1, 7))
def test_any_order_and_any_arrival_hand_out_all_once(order: list[str], arrival: list[str], at_once: int) -> None:
    values = {name: 1 << number for number, name in enumerate(sorted(order))}
    handing = Handing(order, Sum())
    given_out: list[tuple[str, int]] = []
    for first in range(0, 7, at_once):
        arrived = {name: values[name] for name in arrival[first : first + at_once]}
        given_out += handing.arrive(arrived)
    expected = {
        name: value + sum(values[other] for other in Sum().companions(name, order)) for name, value in values.items()
    }
    assert given_out == [(name, expected[name]) for name in order]


def test_a_tensor_that_was_handed_out_and_that_none_needs_is_let_go() -> None:
    arrays = {name: np.zeros(10) for name in ("a", "b", "b.x", "b.y")}
    refs = {name: weakref.ref(array) for name, array in arrays.items()}
    handing = Handing(["b.x", "a", "b", "b.y"], Sum())

    def kept() -> set[str]:
        gc.collect()
        return {name for name, ref in refs.items() if ref() is not None}

    given_out = [name for name, _ in handing.arrive({name: arrays.pop(name) for name in ("a", "b.x")})]
    assert given_out == ["b.x", "a"]
    assert kept() == {"b", "b.x", "b.y"}  # b still needs b.x; b and b.y are the test's own
    given_out = [name for name, _ in handing.arrive({name: arrays.pop(name) for name in ("b", "b.y")})]
    assert given_out == ["b", "b.y"]
    assert kept() == set()


def test_what_the_transform_raises_comes_out() -> None:
    class Failing(Sum):
        def apply(self, name: str, tensor: Any, companions: Mapping[str, Any]) -> Any:
            raise ValueError(name, tensor, companions)

    with pytest.raises(ValueError, match="a"):
        list(Handing(["a"], Failing()).arrive({"a": 1}))
