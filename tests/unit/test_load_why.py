"""Why mode auto read as it did: the causes by their bytes, in a sentence that is true of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import coldctl
from coldctl.loader.host import mounts
from coldctl.loader.load import route
from coldctl.loader.load.route import Cause
from coldctl.loader.load.why import _CALLED, why
from tests.loads import MIB, save
from tests.standin import StandIn
from tests.tiny import made

FILE = "model.safetensors"
OTHERWISE = "is placed otherwise than in its file, so it was read through the page cache (coldctl repack aligns it)"
SHORT = "is in runs too short to be placed as in their files, so it was read through the page cache"


@pytest.mark.parametrize(
    ("caused", "sentence"),
    [
        ({}, "there was nothing to read"),
        ({"cached": 4}, "all of it was in the page cache"),
        ({"direct": 4096, "ends": 1}, "nearly all of it was not in the page cache and was read directly"),
        (
            {"direct": 37, "moved": 63},
            f"63 % {OTHERWISE}; 37 % was not in the page cache and was read directly",
        ),
        (
            {"ends": 1, "direct": 399, "gathered": 500, "plain": 101},
            "50 % was gathered in strips, through the page cache; 40 % was not in the page cache and was read "
            "directly; 10 % was copied plainly, through ordinary memory",
        ),
    ],
    ids=["nothing", "one", "nearly", "two", "three"],
)
def test_causes_come_by_their_share(caused: Any, sentence: str) -> None:
    assert why(caused) == sentence


def test_every_cause_has_its_words() -> None:
    assert set(_CALLED) == set(get_args(Cause)) - {"asked"}  # which is no cause of mode auto


def reason(folder: Path, device: Any = "cpu", **options: Any) -> str:
    with coldctl.open(folder) as checkpoint:
        report = checkpoint.load(device, **options).report
    return str(report.reason).removeprefix("auto: ")


def test_a_few_bytes_are_too_short_for_a_place_of_their_own(tmp_path: Path) -> None:
    save(tmp_path / FILE, {"a": made("U8", 4)})
    assert reason(tmp_path) == f"all of it {SHORT}"


def test_tensors_that_are_not_aligned_are_placed_otherwise(tmp_path: Path) -> None:
    save(tmp_path / FILE, {"a": made("F32", MIB)}, past=1)
    assert reason(tmp_path) == f"all of it {OTHERWISE}"


def test_a_tensor_that_is_not_aligned_is_read_in_place_into_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the ring, where nothing but the copy brings it to its place in the arena."""
    monkeypatch.setattr(route, "mincore_is_true", lambda *_: False)
    save(tmp_path / FILE, {"a": made("F32", MIB)}, past=1)
    told = reason(tmp_path, StandIn(), chunk_bytes=MIB, ring_bytes=4 * MIB)
    assert told == "all of it was read through the page cache, since the kernel does not tell what is in it"


def test_a_share_of_columns_is_gathered(tmp_path: Path) -> None:
    """Half of 4 MiB by columns beside half of 2 MiB by rows, whose MiB is not aligned."""
    tensors = {
        "model.layers.0.self_attn.o_proj.weight": made("F32", 1024, 1024),
        "model.layers.0.self_attn.q_proj.weight": made("F32", 512, 1024),
    }
    save(tmp_path / FILE, tensors, past=1)
    told = reason(tmp_path, tp=(0, 2))
    assert told == f"67 % was gathered in strips, through the page cache; 33 % {OTHERWISE}"


def test_a_network_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "is_network", lambda _: mounts.is_network("nfs4"))
    save(tmp_path / FILE, {"a": made("F32", MIB)}, boundary=4096)
    assert reason(tmp_path) == "all of it is on a network filesystem, so it was read through the page cache"


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    save(tmp_path / FILE, {"a": made("F32", 0)})
    assert reason(tmp_path) == "there was nothing to read"


def test_what_was_asked_for_is_told_so(tmp_path: Path) -> None:
    save(tmp_path / FILE, {"a": made("F32", MIB)}, boundary=4096)
    assert reason(tmp_path, mode="buffered") == "as asked for"
