"""Descriptors of files: none is lost to an interrupt, and where none is left the error says so."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import coldctl
from coldctl.errors import EnvironmentLacksError
from coldctl.loader import regular, source
from coldctl.loader.format.checkpoint import open_checkpoint
from coldctl.loader.regular import opened
from tests.filesystems import in_child
from tests.interrupts import interrupted_everywhere
from tests.loads import MIB, save
from tests.tiny import made

FILE = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("descriptors")
    save(folder / FILE, {"a": made("U8", 2 * MIB), "b": made("F32", 10)})
    return folder


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def look_at(path: Path) -> None:
    with opened(str(path)):
        pass


def open_and_leave(path: Path) -> None:
    shard = open_checkpoint(path).shards[0]
    with shard.source.open() as file:
        file.check_unchanged()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("use", [look_at, open_and_leave])
def test_no_interrupt_loses_a_descriptor(folder: Path, use: Callable[[Path], None]) -> None:
    use(folder / FILE)
    before = open_descriptors()
    for number in interrupted_everywhere(lambda: use(folder / FILE), regular, source):
        assert open_descriptors() == before, number


def out_of_descriptors(spare: int) -> None:
    """As many more may be opened, and no more."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, most))


@pytest.mark.parametrize("options", [{}, {"mode": "direct"}, {"alloc": "map"}, {"alloc": "per-tensor"}], ids=str)
def test_where_no_descriptor_is_left_the_error_says_which_limit_to_raise(folder: Path, options: Any) -> None:
    """With none to spare, with one, and so on until there are enough."""
    with coldctl.open(folder) as checkpoint:
        checkpoint.load(**options, framework="numpy")

        def load(spare: int) -> EnvironmentLacksError | None:
            out_of_descriptors(spare)
            try:
                loaded = checkpoint.load(**options, framework="numpy")
            except EnvironmentLacksError as error:
                return error
            assert set(loaded) == {"a", "b"}
            return None

        none, one, enough = (in_child(partial(load, spare), prepare=lambda: None) for spare in (0, 1, 12))
    assert none
    at_once = ("read", FILE, "a") if options.get("alloc") == "map" else ("allocate", None, None)
    assert (none.stage, none.file, none.tensor) == at_once
    assert "Too many open files" in none.message
    assert none.hint == "raise the limit of open files (ulimit -n)"
    if options == {"mode": "direct"}:  # opens the file twice
        assert one
        assert (one.stage, one.file, one.tensor, one.hint) == ("read", FILE, "a", none.hint)
    assert enough is None
