"""Taking a file out of the page cache, and saying what stayed and why.

posix_fadvise(DONTNEED) drops only clean pages that nobody maps or locks, and reports success in any case. So the file
is synced first, its residency measured afterwards, and whoever may hold the rest is looked for.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from coldctl.loader.host.mounts import filesystem_of
from coldctl.loader.pages.residency import Residency, measure
from coldctl.loader.regular import opened

_PAUSES_SECONDS = (0.0, 0.02, 0.1, 0.4, 1.0)
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}


@dataclass(frozen=True, slots=True)
class Evicted:
    """`stayed_bytes` is what is still in the page cache, null when that cannot be known (`residency`, the measurement
    behind it, says why); `reasons` say who may hold it."""

    stayed_bytes: int | None
    reasons: tuple[str, ...]
    residency: Residency


def evict(path: str) -> Evicted:
    """Drop the pages of the file at `path` from the page cache. Any reader of a file may do that.

    Dirty pages are written to disk first, and up to 1.5 s are waited for pages that are still on their way. Raises
    OSError when the file cannot be opened or is not regular. Does not promise that the pages stay away: whoever reads
    the file brings them back.
    """
    filesystem = filesystem_of(path)
    with opened(path) as (fd, status):
        unwritten = _error_of_syncing(fd)
        holders: list[str] = []
        for pause in _PAUSES_SECONDS:
            time.sleep(pause)
            # Length 0 means to the end of the file: any other length leaves a last page that is not whole.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            residency = measure(path)
            if not residency.resident_bytes or filesystem in IN_MEMORY:
                break
            holders = _holders(path, status)
            if holders:
                break
    stayed = residency.resident_bytes
    if stayed == 0:
        return Evicted(0, (), residency)
    reasons = [unwritten] if unwritten else []
    reasons += [f"pages of {filesystem} are the file itself"] if filesystem in IN_MEMORY else holders
    if stayed and not reasons:
        reasons = ["being read or written, or mapped or locked by a process that this user cannot see"]
    return Evicted(stayed, tuple(reasons), residency)


def _error_of_syncing(fd: int) -> str | None:
    try:
        os.fsync(fd)
    except OSError as error:
        return f"not all of it could be written to disk ({error.strerror})"
    return None


def _holders(path: str, status: os.stat_result) -> list[str]:
    """The processes that map the file, as `mapped by NAME (pid N)`; only those whose maps this caller may read."""
    holders = []
    real_path = os.path.realpath(path)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            how = _how_mapped(process, real_path, status)
            name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if how is not None:
            holders.append(f"{how} by {name} (pid {process.name})")
    return holders


def _how_mapped(process: Path, real_path: str, status: os.stat_result) -> str | None:
    """`mapped`, `mapped and locked in memory`, or None when the process does not map the file."""
    with open(process / "maps", encoding="utf-8", errors="surrogateescape") as file:
        if not any(_is_of(line, real_path, status) for line in file):
            return None
    inside = False
    with open(process / "smaps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if "-" in line.split(" ", 1)[0]:
                inside = _is_of(line, real_path, status)
            elif inside and line.startswith("VmFlags:") and "lo" in line.split():
                return "mapped and locked in memory"
    return "mapped"


def _is_of(line: str, real_path: str, status: os.stat_result) -> bool:
    """Whether a line of /proc/PID/maps is a mapping of the file. btrfs and overlayfs show another device number there
    than stat does, so the same path will do as well."""
    fields = line.rstrip("\n").split(maxsplit=5)
    if len(fields) < 6 or fields[4] != str(status.st_ino):
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return fields[3] == device or fields[5] == real_path
