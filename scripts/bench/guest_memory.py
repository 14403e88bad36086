"""Memory that stays with the virtual machine for as long as a benchmark runs.

A guest with free page reporting hands blocks of memory that stay free for two seconds (on many hosts, of 2 MiB up)
back to its host, and getting them again is several times slower than any disk cache fill. Which contender that hits
depends on how large the pieces are that it allocates and on how long the machine was idle, not on how well it works;
on hardware it hits none. So what the host has is fetched first, reporting is put off for the run, where there is any,
and back on afterwards. Runs take turns: one that ended would put it back on for the others, which disturb it anyway.
"""

from __future__ import annotations

import fcntl
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from coldctl.loader.host.memory import read_kib

_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_NEVER = "11"
"""An order that no block has: the largest that the kernel hands out is 10 (MAX_PAGE_ORDER)."""


@contextmanager
def kept(nbytes: int) -> Iterator[None]:
    """Put free page reporting off while the body runs, which uses some `nbytes`. Needs root where there is any.

    Waits for other runs to end.
    """
    if not _ORDER.exists():
        yield
        return
    with _ORDER.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        before = _ORDER.read_text()
        _ORDER.write_text(_NEVER)
        try:
            _fetch(min(nbytes, read_kib("/proc/meminfo", "MemFree") * 8 // 10))
            yield
        finally:
            _ORDER.write_text(before)


def _fetch(nbytes: int) -> None:
    """Use so much memory once, so that what the host took of it is back before the first round."""
    memory = mmap.mmap(-1, nbytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 1


def state() -> str:
    """For the machine's description: whether reporting plays a part."""
    if not _ORDER.exists():
        return "absent"
    return "put off" if _ORDER.read_text().strip() == _NEVER else "on"
