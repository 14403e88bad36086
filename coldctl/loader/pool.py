"""Work shared out to threads, in order, with the number of threads found by feedback instead of guessed.

The pool starts with few threads, adds one while that brings a tenth more throughput, and never passes its cap. What
was used is in the return value.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar
from weakref import WeakSet

from coldctl.errors import EnvironmentLacksError
from coldctl.events import Events
from coldctl.loader.latch import Latch, outlast
from coldctl.loader.width import Width

Item = TypeVar("Item")
Worker = Callable[[Item], Iterator[int]]
"""Does one item, and yields the number of bytes done after each piece, so that it can be stopped between two."""


def default_streams_cap() -> int:
    """Twice the CPUs this process may use, from 2 to 8: beyond that, local disks and hashes gain nothing."""
    return max(2, min(8, 2 * len(os.sched_getaffinity(0))))


def share_out(
    items: Iterable[Item],
    make_worker: Callable[[], AbstractContextManager[Worker[Item]]],
    events: Events,
    *,
    first: int,
    cap: int,
    interrupted: Callable[[], None] | None = None,
) -> int:
    """Do every item, each on one thread, begun in their order; return the most threads that worked at once.

    `first` threads begin, at most `cap` ever work.

    Every thread enters a worker of its own (its buffers, its open files). The first error stops all threads between
    two pieces and is raised when they have ended; StoppedError comes the same way, and so does what interrupts the
    caller, who waits for them through any further interrupt. `interrupted` is called when one came: to stop a thread
    in the middle of a piece.
    """
    pool = _Pool(items, make_worker, events, Width(first, cap), interrupted)
    pool.run()
    return pool.most


_HINT = (
    "raise the limit of processes (ulimit -u, or the container's pids limit), or that of the address space, which the "
    "thread's stack is taken from (ulimit -v): the system does not say which of them it was"
)
_HINT_AT_EXIT = "load before the interpreter ends, and close streams before"

_ours: WeakSet[threading.Thread] = WeakSet()


def start(thread: threading.Thread) -> None:
    """Start `thread`. Raises EnvironmentLacksError where the system has no room for it, and when the interpreter ends:
    Python would wait for ever for a thread that cannot run any more."""
    if sys.is_finalizing():
        raise EnvironmentLacksError("cannot start a thread: the interpreter ends", hint=_HINT_AT_EXIT)
    _ours.add(thread)
    handled = sys.exc_info()[1]
    try:
        thread.start()
    except RuntimeError as error:
        if (interrupt := error.__context__) and interrupt is not handled:  # which Python's own locks did not survive
            raise interrupt from None
        raise EnvironmentLacksError(f"cannot start a thread: {error}", hint=_HINT) from error


def on_our_thread() -> bool:
    """Whether this runs on a thread that `start` began. Python's collector ends abandoned generators on any thread, and
    one of ours that waits for others of ours may wait for itself."""
    return threading.current_thread() in _ours


class _Pool(Generic[Item]):
    def __init__(
        self,
        items: Iterable[Item],
        make_worker: Callable[[], AbstractContextManager[Worker[Item]]],
        events: Events,
        width: Width,
        interrupted: Callable[[], None] | None,
    ) -> None:
        self.most = 0
        self._items = iter(items)
        self._make_worker = make_worker
        self._events = events
        self._width = width
        self._interrupted = interrupted
        self._lock = threading.Lock()
        self._over = Latch()
        self._started: list[threading.Thread] = []
        self._threads = 0
        self._working = 0
        self._exhausted = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        outlast(self._run)  # what the threads write to must outlive them
        if self._failure:
            raise self._failure

    def _run(self, interrupt: BaseException | None) -> None:
        """Start threads, unless that was interrupted before, and wait for all."""
        self._failure = interrupt or self._failure
        if interrupt and self._interrupted:
            self._interrupted()
        with self._lock:
            self._add_threads()
            self._open_when_over()
        self._over.wait()
        for thread in self._started:  # their work is done, and what they hold goes with their last steps
            if thread.is_alive():
                thread.join()

    def _open_when_over(self) -> None:
        """When nothing is left to be begun, and no thread at work. One that begins later finds nothing to do."""
        if self._ending() and not self._threads:
            self._over.open()

    def _add_threads(self) -> None:
        """Start threads up to the target, or as many as the system allows, which must be one at least."""
        while self._working < self._width.target and not self._ending():
            thread = threading.Thread(target=self._work, name=f"coldctl-{len(self._started) + 1}", daemon=True)
            self._started.append(thread)  # before its start, which an interrupt may leave half done
            try:
                start(thread)
            except EnvironmentLacksError:
                self._started.remove(thread)
                if self._working:
                    return
                raise
            self._working += 1
            self.most = max(self.most, self._working)

    def _ending(self) -> bool:
        return self._exhausted or self._failure is not None

    def _work(self) -> None:
        with self._lock:
            if self._ending():
                return
            self._threads += 1  # here, since an interrupt may come between a thread's start and what follows it
        try:
            with self._make_worker() as worker:
                while (item := self._next()) is not None:
                    self._do(worker, item)
        except BaseException as error:  # carried to the caller's thread, SystemExit included
            with self._lock:
                self._failure = self._failure or error
        finally:
            with self._lock:
                self._threads -= 1
                self._open_when_over()

    def _next(self) -> Item | None:
        """The next item, or nothing when there is none left or this thread is one too many."""
        with self._lock:
            if self._ending():
                return None
            if self._working > self._width.target:
                self._working -= 1
                return None
            item = next(self._items, None)
            self._exhausted = item is None
            return item

    def _do(self, worker: Worker[Item], item: Item) -> None:
        for nbytes in worker(item):
            self._events.advance(nbytes)
            self._events.raise_if_stopped()
            with self._lock:
                if self._failure:
                    return
                if self._width.record(nbytes, time.perf_counter()):
                    self._add_threads()
