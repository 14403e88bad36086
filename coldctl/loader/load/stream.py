"""Tensors as they arrive, in their order, in a bounded amount of memory.

The plan is cut into batches, each with memory of its own that is gone when its tensors are. A thread loads one batch
while the caller works on another, and no more than one waits between them.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from coldctl.loader.load.ending import stopped_at_exit
from coldctl.loader.load.frames import forget_frames
from coldctl.loader.load.handing import Handing
from coldctl.loader.load.loading import Watched
from coldctl.loader.load.session import Session
from coldctl.loader.load.tensors import Tensor
from coldctl.loader.load.wanted import Wanted
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
    ready: queue.Queue[_Item] = queue.Queue(maxsize=1)
    thread = threading.Thread(
        target=_produce, args=(session, wanted, watched, ready), name="coldctl-stream", daemon=True
    )
    try:
        handing = Handing([each.name for each in wanted], session.settings.transform)
        start(stopped_at_exit(thread, watched.cancel))
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from handing.arrive(item)
            del item
    finally:
        watched.cancelled = True
        if thread.ident is None:
            session.close()
        elif not on_our_thread() and not sys.is_finalizing():  # when no thread goes on, so none ends
            thread.join()


def _produce(session: Session, wanted: Sequence[Wanted], watched: Watched, ready: queue.Queue[_Item]) -> None:
    try:
        try:
            for batch in batches(wanted):
                _put(ready, _load(session, batch), watched)
        finally:
            session.close()
        _put(ready, None, watched)
    except BaseException as error:  # carried to the caller's thread
        forget_frames(error)
        _put(ready, error, watched)


def _load(session: Session, batch: Sequence[Wanted]) -> dict[str, Tensor]:
    prepared = session.prepare(batch)
    session.run(prepared, 0)
    return prepared.memory.views(range(len(batch)))


def _put(ready: queue.Queue[_Item], item: _Item, watched: Watched) -> None:
    while not watched.cancelled:
        try:
            ready.put(item, timeout=_LOOK_SECONDS)
            return
        except queue.Full:
            continue
