"""How much of a file is in the page cache, told only where the answer is true.

mincore(2) gives an exact map, but since Linux 5.2 it says "all resident" to callers that neither own the file nor may
write it (commit 134fca9063ad). For those, RWF_NOWAIT reads of a few sampled pages give an estimate with its bound.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coldctl.loader.host.memory import read_proc
from coldctl.loader.regular import opened
from coldctl.loader.syscalls import PAGE_BYTES, map_read_only, mincore, read_is_immediate, unmap

_WINDOW_BYTES = 1 << 30
_MAX_SAMPLES = 400
_PAGES_PER_SAMPLE = 8
_CONFIDENCE = 0.95
_MISSING_PAGES = re.compile(rb"\0+")
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))
_CAP_FOWNER = 3


@dataclass(frozen=True, slots=True)
class Residency:
    """The part of a file that was in the page cache when measured; it may have changed since.

    `resident_bytes` is null, with `reason`, when it cannot be known. `method` is `mincore` (exact, with `missing`: the
    (offset, length) ranges in bytes that were not resident, merged, in file order) or `sampled` (an estimate that is
    off by at most `bound_bytes` with 95 % confidence, and no `missing`). `cells` are shares from 0 to 1 of equal parts
    of the file, first bytes first, when they were asked for and the method is exact.
    """

    resident_bytes: int | None
    method: Literal["mincore", "sampled"] | None
    bound_bytes: int
    reason: str | None
    missing: list[tuple[int, int]] | None
    cells: list[float] | None


def measure(path: str, *, cells: int = 0) -> Residency:
    """The residency of the file at `path`; with `cells`, also a map of that many parts (fewer if it has fewer pages).

    Costs 20 to 25 ms a GiB where mincore can be believed, and some 400 system calls elsewhere. Raises OSError when the
    file cannot be opened or is not regular.
    """
    with opened(path) as (fd, status):
        size = status.st_size
        if size == 0:
            return Residency(0, "mincore", 0, None, [], [] if cells else None)
        if not mincore_is_true(path, status):
            return _sampled(fd, size, "the caller neither owns the file nor may write it, so mincore would not tell")
        try:
            missing = _missing_ranges(fd, size)
        except OSError as error:
            return _sampled(fd, size, f"the file cannot be mapped ({error.strerror})")
    resident = size - sum(length for _, length in missing)
    return Residency(resident, "mincore", 0, None, missing, _cells(missing, size, cells) if cells else None)


def mincore_is_true(path: str, status: os.stat_result) -> bool:
    """Whether the kernel answers mincore truly for this caller (`can_do_mincore` in mm/mincore.c): the caller owns the
    file, has CAP_FOWNER over it, or may write it. Tested without opening it for writing."""
    if _uid_is_known(status.st_uid) and (status.st_uid == os.geteuid() or _has_capability(_CAP_FOWNER)):
        return True
    return os.access(path, os.W_OK, effective_ids=True)


def _uid_is_known(uid: int) -> bool:
    """In a user namespace an owner from outside looks like the overflow user, and no capability reaches its files."""
    if any(int(line.split()[2]) == 2**32 - 1 for line in read_proc("/proc/self/uid_map")):
        return True
    return uid != int(read_proc("/proc/sys/kernel/overflowuid")[0])


def _has_capability(bit: int) -> bool:
    lines = read_proc("/proc/self/status")
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> bit & 1)


def _missing_ranges(fd: int, size: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, length in _missing_in_windows(fd, size):
        if merged and sum(merged[-1]) == offset:
            offset, length = merged[-1][0], merged.pop()[1] + length
        merged.append((offset, length))
    return merged


def _missing_in_windows(fd: int, size: int) -> Iterator[tuple[int, int]]:
    buffer = ctypes.create_string_buffer(-(-min(size, _WINDOW_BYTES) // PAGE_BYTES))
    for window in range(0, size, _WINDOW_BYTES):
        nbytes = min(_WINDOW_BYTES, size - window)
        address = map_read_only(fd, window, nbytes)
        try:
            mincore(address, nbytes, buffer)
        finally:
            unmap(address, nbytes)
        pages = buffer.raw[: -(-nbytes // PAGE_BYTES)].translate(_LOWEST_BIT)
        for match in _MISSING_PAGES.finditer(pages):
            start = window + match.start() * PAGE_BYTES
            yield start, min(window + match.end() * PAGE_BYTES, size) - start


def _cells(missing: list[tuple[int, int]], size: int, wanted: int) -> list[float]:
    count = min(wanted, -(-size // PAGE_BYTES))
    edges = [cell * size // count for cell in range(count + 1)]
    absent = [0] * count
    cell = 0
    for offset, length in missing:
        while edges[cell + 1] <= offset:
            cell += 1
        overlapping = cell
        while overlapping < count and edges[overlapping] < offset + length:
            first, last = max(offset, edges[overlapping]), min(offset + length, edges[overlapping + 1])
            absent[overlapping] += last - first
            overlapping += 1
    return [1 - absent[cell] / (edges[cell + 1] - edges[cell]) for cell in range(count)]


def _sampled(fd: int, size: int, why_not_mincore: str) -> Residency:
    """One random page out of each of n equal strata. A miss makes the kernel read that page, so n stays small, and the
    pages that missed are dropped again: looking must not warm."""
    pages = -(-size // PAGE_BYTES)
    strata = min(_MAX_SAMPLES, -(-pages // _PAGES_PER_SAMPLE))
    # Without it a miss could start read-ahead of many pages, and looking would warm the file.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    missed: list[int] = []
    try:
        for stratum in range(strata):
            first, end = stratum * pages // strata, (stratum + 1) * pages // strata
            page = first + int.from_bytes(os.urandom(8), "little") % (end - first)
            if not read_is_immediate(fd, page * PAGE_BYTES):
                missed.append(page)
    except OSError as error:
        reason = f"{why_not_mincore}, and the filesystem answers no reads without waiting ({error.strerror})"
        return Residency(None, None, 0, reason, None, None)
    finally:
        _drop(fd, missed)
    hits = strata - len(missed)
    share = hits / strata
    bound = math.ceil(size * max_error(hits, strata))
    return Residency(round(size * share), "sampled", min(bound, size), why_not_mincore, None, None)


def _drop(fd: int, pages: list[int]) -> None:
    """Drop pages whose reads were started. One that is still on its way stays, so it is tried again a little later."""
    for pause_seconds in (0.0, 0.02) if pages else ():
        time.sleep(pause_seconds)
        for page in pages:
            os.posix_fadvise(fd, page * PAGE_BYTES, PAGE_BYTES, os.POSIX_FADV_DONTNEED)


def max_error(hits: int, samples: int) -> float:
    """How far the true share may be from hits / samples, at 95 % confidence (two-sided, 2.5 % for each side).

    The Chernoff bound in its Kullback-Leibler form: the share p is excluded when samples * KL(hits/samples || p) >
    ln(2 / 0.05). It holds for independent draws with different chances, so for one draw from each stratum, and at any
    number of samples; with 400 hits out of 400 it is 0.92 %.
    """
    share = hits / samples
    limit = math.log(2 / (1 - _CONFIDENCE)) / samples
    return max(_farthest(share, 0.0, limit), _farthest(share, 1.0, limit))


def _farthest(share: float, end: float, limit: float) -> float:
    """The distance from `share` towards `end` at which the divergence reaches `limit`, by bisection."""
    near, far = share, end
    for _ in range(60):
        middle = (near + far) / 2
        if _divergence(share, middle) > limit:
            far = middle
        else:
            near = middle
    return abs(far - share)


def _divergence(share: float, other: float) -> float:
    """KL divergence between two Bernoulli distributions, infinite where `other` rules out what `share` saw."""
    total = 0.0
    for seen, expected in ((share, other), (1 - share, 1 - other)):
        if seen > 0:
            total += seen * math.log(seen / expected) if expected > 0 else math.inf
    return total
