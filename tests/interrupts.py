"""Interrupts where they are rare: wherever CPython looks for signals in some code, one run of it for each place."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any


def _raise() -> None:
    raise KeyboardInterrupt


def interrupted_everywhere(
    work: Callable[[], object], *modules: ModuleType, handler: Callable[[], object] = _raise
) -> Iterator[int]:
    """Do `work`, and `handler` at the first place in the source of `modules` where CPython looks for signals, then at
    the second, and so on until there are no more. Yields after each, when a KeyboardInterrupt, which is what it raises
    unless told otherwise, and all that it held are gone."""
    files = {module.__file__ for module in modules}
    for number in itertools.count():
        if not _interrupted(work, files, handler, number):
            assert number, "nothing was interrupted"
            return
        yield number


_LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD")
"""After instructions of these names, and after no others: so `with lock` never loses a lock."""


def _interrupted(
    work: Callable[[], object], files: set[str | None], handler: Callable[[], object], number: int
) -> bool:
    left = itertools.count(number, -1)
    previous: dict[FrameType, str] = {}
    was_there = False

    def called(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ARG001
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        return went_on

    def went_on(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal was_there
        if event == "opcode":
            looks = previous.get(frame, "").startswith(_LOOKS)
            previous[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if looks and next(left) == 0:
                previous.clear()
                was_there = True
                handler()
        return went_on

    before = sys.gettrace()
    sys.settrace(called)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)
        previous.clear()
    return was_there
