"""Loads of one checkpoint into host memory, each in a process of its own. All have to bring the same bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scripts.bench.child import Sample, run_json, run_json_watching_memory


class Content(NamedTuple):
    """What a load brought: so many tensors of so many bytes, and the sum of all bytes as words of 8, modulo 2^64."""

    tensors: int
    nbytes: int
    sum: int


class DiffersError(Exception):
    """Two loaders brought different bytes, so there is nothing to compare."""


class Loads:
    def __init__(self, folder: Path, *, until: Literal["loaded", "touched"] = "touched") -> None:
        """`until` is the moment of load_once's at which the clock ends."""
        self.folder = folder
        self._until = until
        self._content: Content | None = None

    @property
    def content(self) -> Content:
        """What every load brought."""
        assert self._content, "nothing was loaded yet"
        return self._content

    def timed(self, names: Iterable[str], prepare: Callable[[], None]) -> dict[str, Callable[[], Sample]]:
        """Contenders for `interleave`: each prepares and loads once, and gives what load_once measured."""

        def contender(name: str) -> Callable[[], Sample]:
            def sample() -> Sample:
                prepare()
                measured, result = run_json(*self._command(name))
                self._check(name, result)
                return replace(measured, **result[self._until])

            return sample

        return {name: contender(name) for name in names}

    def memory_bytes(self, name: str) -> int:
        """The most RssAnon that a load takes above what its imports took."""
        watched, result = run_json_watching_memory(*self._command(name))
        self._check(name, result)
        return (watched.peak_anon_bytes or 0) - int(result["imports_bytes"])

    def _command(self, name: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "scripts.bench.load_once", name, os.fspath(self.folder))

    def _check(self, name: str, result: dict[str, Any]) -> None:
        content = Content(result["tensors"], result["bytes"], result["sum"])
        self._content = self._content or content
        if content != self._content:
            raise DiffersError(f"{name} brought {content}, and the loaders before it {self._content}")
