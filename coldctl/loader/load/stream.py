"""Tensors as they arrive, in their order, in a bounded amount of memory.

The plan is cut into batches, each with memory of its own that is gone when its tensors are. A thread loads one batch
while the caller works on another, and no more than one waits between them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from coldctl.errors import UsageError
from coldctl.loader.latch import Latch, outlast
from coldctl.loader.load.ending import stopped_at_exit
from coldctl.loader.load.frames import forget_frames
from coldctl.loader.load.handing import Handing
from coldctl.loader.load.loading import LOAD_AFTER_FORK, OF_ANOTHER_PROCESS
from coldctl.loader.load.session import Session
from coldctl.loader.load.tensors import Tensor
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.load.watched import Watched
from coldctl.loader.pool import on_our_thread, start
from coldctl.units import MIB

_FIRST_BATCH_BYTES = 32 * MIB
_BATCH_BYTES = 256 * MIB
_LOOK_SECONDS = 0.1

_Item = dict[str, Tensor] | BaseException | None
"""The tensors of a batch, what stopped the load, or its end."""


def batches(wanted: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """The plan in its order: the first batch small, so that the first tensor comes soon, each next one twice as large
    up to 256 MiB. A larger tensor is a batch of its own."""
    first, nbytes, limit_bytes = 0, 0, _FIRST_BATCH_BYTES
    for number, each in enumerate(wanted):
        if number > first and nbytes + each.nbytes > limit_bytes:
            yield wanted[first:number]
            first, nbytes, limit_bytes = number, 0, min(2 * limit_bytes, _BATCH_BYTES)
        nbytes += each.nbytes
    if first < len(wanted):
        yield wanted[first:]


def stream(
    begin_session: Callable[[], Session], wanted: Sequence[Wanted], watched: Watched
) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of `wanted` with its name. Closed early, it stops the load and gives everything back; nothing is
    taken before the first tensor is asked for.

    A tensor keeps the memory of its batch alive: who drops tensors as they come needs three batches at most.
    """
    try:
        yield from _consume(begin_session(), wanted, watched)
    except BaseException as error:
        forget_frames(error)
        raise


def _consume(session: Session, wanted: Sequence[Wanted], watched: Watched) -> Iterator[tuple[str, Tensor]]:
    ahead = _Ahead(session, wanted, watched)
    try:
        handing = Handing([each.name for each in wanted], session.settings.transform)
        ahead.begin()
        while (item := ahead.take()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from handing.arrive(item)
            del item
    finally:
        ahead.end()


class _Ahead:
    """The thread that loads ahead: it has one batch ready, and no second one before that was taken.

    It is its queues and locks that no interrupt breaks, and that nobody waits for in a fork, where it is not.
    """

    def __init__(self, session: Session, wanted: Sequence[Wanted], watched: Watched) -> None:
        self._session = session
        self._wanted = wanted
        self._watched = watched
        self._process = os.getpid()
        self._ready: SimpleQueue[_Item] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._room.put(None)
        self._begun = threading.Lock()  # taken, once, by the thread; or by the caller, so that it never begins
        self._over = Latch()
        self._thread = threading.Thread(target=self._run, name="coldctl-stream", daemon=True)

    def begin(self) -> None:
        start(stopped_at_exit(self._thread, self._watched.cancel))

    def take(self) -> _Item:
        """The next, when it is there."""
        if os.getpid() != self._process:
            raise UsageError(OF_ANOTHER_PROCESS, hint=LOAD_AFTER_FORK)
        item = self._ready.get()
        self._room.put(None)
        return item

    def end(self) -> None:
        """Stop it, and wait until everything is given back."""
        self._watched.cancel()
        if os.getpid() != self._process:
            return
        if self._begun.acquire(blocking=False):
            self._session.close()
        elif not on_our_thread() and not sys.is_finalizing():  # when no thread goes on, so none ends
            outlast(lambda _: self._wait())

    def _wait(self) -> None:
        self._over.wait()
        if self._thread.is_alive():  # what it holds goes with its last steps
            self._thread.join()

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._produce()
        finally:
            self._over.open()

    def _produce(self) -> None:
        try:
            try:
                for batch in batches(self._wanted):
                    self._put(_load(self._session, batch))
            finally:
                self._session.close()
            self._put(None)
        except BaseException as error:  # carried to the caller's thread
            forget_frames(error)
            self._put(error)

    def _put(self, item: _Item) -> None:
        while not self._watched.cancelled:
            with suppress(Empty):
                self._room.get(timeout=_LOOK_SECONDS)
                self._ready.put(item)
                return


def _load(session: Session, batch: Sequence[Wanted]) -> dict[str, Tensor]:
    prepared = session.prepare(batch)
    session.run(prepared, 0)
    return prepared.memory.views(range(len(batch)))
