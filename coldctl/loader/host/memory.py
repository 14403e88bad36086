"""What this process holds in memory, and what the machine has."""

from __future__ import annotations

import threading
from typing import Self

from coldctl.errors import EnvironmentLacksError, from_os_error


def rss_anon_bytes() -> int:
    """Anonymous resident memory of this process in bytes (RssAnon in proc(5)): what it allocated and touched, without
    pages of mapped files. The kernel counts it in batches of a few pages a thread."""
    return read_kib("/proc/self/status", "RssAnon")


def read_kib(path: str, key: str) -> int:
    """The bytes that the line `key:  N kB` of a proc file states. Raises EnvironmentLacksError when there is none."""
    for line in read_proc(path):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise EnvironmentLacksError(f"{path} has no {key}", hint="coldctl needs Linux 4.5 or newer")


def read_proc(path: str) -> list[str]:
    """The lines of a file of /proc. Raises EnvironmentLacksError where it cannot be read: where no /proc is mounted, or
    no descriptor is left."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError as error:
        refused = from_os_error(error, "read", path)
        if isinstance(refused, EnvironmentLacksError):
            raise refused from error
        raise EnvironmentLacksError(refused.message, hint="mount /proc") from error


class PeakAnon:
    """The most anonymous memory that this process gained at once inside the `with`, sampled 50 times a second.

    `peak_bytes` is what came on top of what was there at the start: what imports take is not counted.
    """

    _INTERVAL_SECONDS = 0.02

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._start_bytes = rss_anon_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="coldctl-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._done.wait(self._INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, rss_anon_bytes() - self._start_bytes)
