"""coldctl.fp8.loss: against the same figures in double precision, by their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coldctl.fp8.loss import StripLoss, compare, total
from tests.fp8 import Floats, some_rows


def loss_of(before: Floats, after: Floats, first_row: int = 0) -> StripLoss:
    return compare(before.copy(), after.copy(), np.abs(before).max(axis=1), first_row)


def rounded(values: Floats) -> Floats:
    """As E4M3 rounds: 4 significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 16) / 16, exponent).astype(np.float32)


@pytest.mark.parametrize("magnitude", [1.0, 1e-30, 1e30, 1e-42])
def test_norms_and_angles_are_those_of_double_precision_at_every_magnitude(magnitude: float) -> None:
    before = (some_rows(50, 300) * magnitude).astype(np.float32)
    after = rounded(before) if magnitude != 1e-42 else (before * np.float32(1.25)).astype(np.float32)
    loss = loss_of(before, after)
    a, b = before.astype(np.float64), after.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    distances = 1 - (a * b).sum(axis=1) / lengths
    assert loss.signal == pytest.approx((a * a).sum(), rel=1e-5)
    assert loss.noise == pytest.approx(((b - a) ** 2).sum(), rel=1e-5)
    assert loss.max_error == pytest.approx(np.abs(b - a).max(), rel=1e-6)
    assert loss.distances == pytest.approx(distances.sum(), rel=1e-3, abs=1e-10)
    assert loss.directed_rows == 50
    assert [row.row for row in loss.worst] == np.argsort(-distances, kind="stable")[:5].tolist()


def test_values_and_whole_rows_that_became_zero_are_counted() -> None:
    before = np.array([[1, 2, 0], [3, 4, 5], [0, 0, 0]], np.float32)
    after = np.array([[0, 0, 0], [3, 0, 5], [0, 0, 0]], np.float32)
    loss = loss_of(before, after, first_row=7)
    assert (loss.values, loss.flushed, loss.flushed_rows) == (9, 3, 1)
    assert loss.worst[0].row == 7
    assert loss.worst[0].cosine_distance == 1
    assert loss.directed_rows == 2


def test_a_row_that_turned_round_is_as_far_as_can_be() -> None:
    before = np.array([[1, 2]], np.float32)
    assert loss_of(before, -before).worst[0].cosine_distance == pytest.approx(2)


def test_equal_rows_have_lost_nothing() -> None:
    before = some_rows(3, 5)
    loss = loss_of(before, before)
    assert (loss.noise, loss.max_error, loss.flushed, loss.distances) == (0, 0, 0, 0)


def test_zeros_alone_have_no_angle() -> None:
    loss = loss_of(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
    assert (loss.signal, loss.directed_rows, loss.worst) == (0, 0, ())


def test_strips_add_up_to_the_same_in_any_order() -> None:
    before = some_rows(90, 40)
    whole = loss_of(before, rounded(before))
    strips = [loss_of(before[n : n + 30], rounded(before[n : n + 30]), n) for n in (0, 30, 60)]
    totals = {total(order) for order in itertools.permutations(strips)}
    assert len(totals) == 1
    (summed,) = totals
    assert summed.worst == whole.worst
    assert summed.noise == pytest.approx(whole.noise, rel=1e-12)
    assert (summed.values, summed.max_error, summed.directed_rows) == (3600, whole.max_error, 90)
