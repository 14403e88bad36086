"""The anonymous memory of a process that loads, seen from another: a thread inside it would take time from the load.

The kernel keeps no peak of it. VmHWM, which it does keep, counts the pages of mapped files too.
"""

from __future__ import annotations

import threading

from coldctl.errors import EnvironmentLacksError
from coldctl.loader.host.memory import read_kib


class PeakSampler:
    """Reads RssAnon of the process `pid` every 2 ms, by a thread, from `start` to `stop` or to the end of the process.

    `peak_anon_bytes` is the most that was seen so far, 0 when nothing was. A shorter peak may be missed.
    """

    _INTERVAL_SECONDS = 0.002

    def __init__(self, pid: int) -> None:
        self.peak_anon_bytes = 0
        self._status = f"/proc/{pid}/status"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="coldctl-peak-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After this nothing is read, so that another process may have the number."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._done.is_set():
                self.peak_anon_bytes = max(self.peak_anon_bytes, read_kib(self._status, "RssAnon"))
                self._done.wait(self._INTERVAL_SECONDS)
        except EnvironmentLacksError:
            return  # the process is over: a zombie has no memory
