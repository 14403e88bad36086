"""Through the page cache or past it: chosen for every range by what is resident, and for what is not by measuring.

Bytes that are in the page cache are copied from there. What is cold can be read with O_DIRECT, which saves a copy and
leaves the cache as it was, or through the cache, where read-ahead (the host's too, under a virtual machine) may be
faster. So where direct reads turn out to be slow, a few ranges go through the cache, and the rest the faster way.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Literal

from coldctl.errors import ColdctlError, EnvironmentLacksError
from coldctl.loader.host.mounts import filesystem_of, is_network
from coldctl.loader.pages.residency import mincore_is_true
from coldctl.loader.regular import opened
from coldctl.loader.source import LocalFile, Source
from coldctl.loader.syscalls import PAGE_BYTES, map_read_only, mincore, unmap

Way = Literal["buffered", "direct"]
Io = Literal["auto", "buffered", "direct"]
Cause = Literal[
    "direct",
    "ends",
    "cached",
    "slower",
    "refused",
    "network",
    "untold",
    "moved",
    "short",
    "gathered",
    "plain",
    "asked",
]
"""Why bytes came as they did: past the page cache, or through it. What each is called stands in `why`."""

_SAMPLES = 3
_TRIALS_EACH = 2
_WINS_BY = 1.1
_FAST_BYTES_PER_SECOND = 1e9
"""Of one thread."""


class Routes:
    """The way for every range of any number of files. Any thread may ask.

    `io` is `auto`, or the one way for all (`direct` still reads buffered what is not whole pages). Closed, it gives its
    mappings back; they are only asked about, never touched.
    """

    def __init__(self, io: Io) -> None:
        self._io = io
        self._lock = threading.Lock()
        self._maps: dict[int, _Residents | Cause] = {}
        self._on_network: dict[int, bool] = {}
        self._trial = _Trial()

    def way(self, source: Source, offset_bytes: int, nbytes: int) -> tuple[Cause, bool]:
        """`direct`, or why the range is to be read through the page cache; and whether that is a trial: then tell
        `record`."""
        if self._io != "auto":
            return "direct" if self._io == "direct" else "asked", False
        if cause := self._why_buffered(source, offset_bytes, nbytes):
            return cause, False
        return "direct" if self._trial.way() == "direct" else "slower", True

    def goes_direct(self, source: Source, offset_bytes: int, nbytes: int) -> bool:
        """Whether the range can go past the page cache, and is not in it."""
        if self._io != "auto":
            return self._io == "direct"
        return self._why_buffered(source, offset_bytes, nbytes) is None

    def _why_buffered(self, source: Source, offset_bytes: int, nbytes: int) -> Cause | None:
        """Why the range cannot go past the page cache, or need not."""
        residents = self._residents(source)
        if isinstance(residents, _Residents):
            return "cached" if 2 * residents.share(offset_bytes, nbytes) > 1 else None
        return residents

    def record(self, cause: Cause, nbytes: int, seconds: float) -> None:
        """So long the range took that went its way by this cause."""
        self._trial.record("direct" if cause == "direct" else "buffered", nbytes, seconds)

    def refuse_direct(self, source: Source, why: ColdctlError) -> None:
        """The filesystem of `source` takes no direct reads after all. Raises where nothing else was allowed."""
        if self._io == "direct":
            hint = "use mode auto, which reads through the page cache there"
            raise EnvironmentLacksError(f"{source.name} cannot be read with O_DIRECT", hint=hint) from why
        with self._lock:
            residents, self._maps[id(source)] = self._maps.get(id(source)), "refused"
        if isinstance(residents, _Residents):
            residents.close()

    def _residents(self, source: Source) -> _Residents | Cause:
        with self._lock:
            if id(source) not in self._maps:
                self._maps[id(source)] = "network" if self._is_on_network(source) else _residents_of(source)
            return self._maps[id(source)]

    def is_on_network(self, source: Source) -> bool:
        """Whether reads of the file go over a network. Looked up once for each device that files are on."""
        with self._lock:
            return self._is_on_network(source)

    def _is_on_network(self, source: Source) -> bool:
        if not isinstance(source, LocalFile):
            return False
        device = source.identity[0]
        if device not in self._on_network:
            self._on_network[device] = _is_on_network(source.path)
        return self._on_network[device]

    def close(self) -> None:
        with self._lock:
            for residents in self._maps.values():
                if isinstance(residents, _Residents):
                    residents.close()
            self._maps.clear()


def _residents_of(source: Source) -> _Residents | Cause:
    """`untold` where the kernel would not tell what is resident, `refused` for what is no file with bytes in it."""
    if not isinstance(source, LocalFile) or not source.size_bytes:
        return "refused"
    try:
        with opened(source.path) as (fd, status):
            # By the size that it had: a mapping may be longer than its file, and a file may have become shorter.
            return _Residents(fd, source.size_bytes) if mincore_is_true(source.path, status) else "untold"
    except (OSError, EnvironmentLacksError):  # whoever reads the file will say so, if it keeps from that
        return "untold"


def _is_on_network(path: str) -> bool:
    try:
        return is_network(filesystem_of(path))
    except OSError:
        return False


class _Residents:
    """A file's pages, looked at through a mapping that nobody touches; a few of each range, since that takes time."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._address: int | None = map_read_only(fd, 0, size_bytes)
        self._lock = threading.Lock()
        self._answer = ctypes.create_string_buffer(1)

    def share(self, offset_bytes: int, nbytes: int) -> float:
        """The share of the sampled pages of the range that are in the page cache. 0 once closed."""
        first, end = offset_bytes // PAGE_BYTES, -(-(offset_bytes + nbytes) // PAGE_BYTES)
        step = max((end - first) // _SAMPLES, 1)
        pages = range(first + step // 2, end, step)
        resident = 0
        with self._lock:
            if self._address is None:
                return 0.0
            for page in pages:
                mincore(self._address + page * PAGE_BYTES, PAGE_BYTES, self._answer)
                resident += self._answer.raw[0] & 1
        return resident / len(pages)

    def close(self) -> None:
        with self._lock:
            if self._address is not None:
                unmap(self._address, self._size_bytes)
                self._address = None


class _Trial:
    """Which way cold ranges come faster. Past the page cache first; where that is fast, through it can win nothing,
    since it costs a copy more. Where it is not, a few ranges go through the cache, and the rest the faster way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Way, int] = {"direct": 0, "buffered": 0}
        self._bytes: dict[Way, int] = {"direct": 0, "buffered": 0}
        self._seconds: dict[Way, float] = {"direct": 0.0, "buffered": 0.0}

    def way(self) -> Way:
        with self._lock:
            if self._known["direct"] < _TRIALS_EACH or self._rate("direct") >= _FAST_BYTES_PER_SECOND:
                return "direct"
            if self._known["buffered"] < _TRIALS_EACH:
                return "buffered"
            return "buffered" if self._rate("buffered") > self._rate("direct") * _WINS_BY else "direct"

    def record(self, way: Way, nbytes: int, seconds: float) -> None:
        with self._lock:
            if self._known[way] < _TRIALS_EACH:
                self._known[way] += 1
                self._bytes[way] += nbytes
                self._seconds[way] += seconds

    def _rate(self, way: Way) -> float:
        return self._bytes[way] / self._seconds[way] if self._seconds[way] else 0.0
