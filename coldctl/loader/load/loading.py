"""A load that goes on in the background: what is there already, how far it is, and a way to stop it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self

from coldctl.errors import NotLoadedError, UsageError
from coldctl.loader.latch import Latch
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.tensors import Tensor
from coldctl.loader.load.watched import Watched

OF_ANOTHER_PROCESS = "the load belongs to the process that began it, and ends there"
LOAD_AFTER_FORK = "begin it in the process that uses it, or fork when it is over"

OnTensor = Callable[[str, Tensor], None]
OnDone = Callable[["Loading"], None]


class Progress(NamedTuple):
    """Bytes of tensors that have arrived, of all that will."""

    done_bytes: int
    total_bytes: int


class Loading:
    """The handle of a load of which the first layers are there and a thread brings the rest.

    `handle[name]` is a tensor whose every byte has arrived (and was checked, where that was asked for), or
    NotLoadedError: never one that is half there. After a failure or `cancel()` it raises that failure for every name;
    tensors that were taken before stay good. Any thread may call any method, and so may a signal handler: nothing here
    is locked, and every step leaves what another may come upon.

    The load belongs to the process that began it. In a fork that was made while it went on nothing more arrives: what
    is there stays good, and whoever asks for more gets UsageError.
    """

    def __init__(self, names: Iterable[str], total_bytes: int, watched: Watched) -> None:
        self._names = frozenset(names)
        self._total_bytes = total_bytes
        self._watched = watched
        self._process = os.getpid()
        self._over = Latch()
        self._tensors: dict[str, Tensor] = {}
        self._done_bytes = 0
        self._loaded: Loaded | None = None
        self._failure: BaseException | None = None
        self._trace: TracebackType | None = None
        self._on_tensor: list[_Once] = []
        self._on_done: list[OnDone] = []

    def __getitem__(self, name: str) -> Tensor:
        """The tensor. Raises KeyError for one that the load does not have, NotLoadedError for one that is to come."""
        if name not in self._names:
            raise KeyError(name)
        tensor = self._tensors.get(name)
        self._raise_failure()  # set before the tensors are taken away
        if tensor is None:
            self._raise_in_fork()
            raise NotLoadedError(f"{name} has not arrived")
        return tensor

    def __contains__(self, name: object) -> bool:
        """Whether the tensor is there already."""
        return name in self._tensors

    __iter__ = None
    """Not iterable: of what is there, `loaded` is a copy to go through."""

    @property
    def loaded(self) -> dict[str, Tensor]:
        """The tensors that are there now."""
        return dict(self._tensors)

    @property
    def done(self) -> bool:
        """Whether the load is over, one way or another: `wait` returns or raises at once."""
        self._raise_in_fork()
        return self._over.is_open

    @property
    def progress(self) -> Progress:
        """How much has arrived so far."""
        self._raise_in_fork()
        return Progress(self._done_bytes, self._total_bytes)

    def wait(self, timeout_seconds: float | None = None) -> Loaded:
        """All tensors, when they have arrived. Raises what the load failed with, CancelledError after `cancel`, and
        TimeoutError when it is not over by then; the load goes on, and `wait` can be called again.

        Raises UsageError in a callback, in `events` and in a transform: the load waits for those.
        """
        self._raise_in_fork()
        if self._watched.is_inside:
            raise UsageError("what the load calls cannot wait for the load, which waits for it")
        if not self._over.wait(timeout_seconds):
            raise TimeoutError(f"the load is not over after {timeout_seconds} s")
        self._raise_failure()
        assert self._loaded is not None
        return self._loaded

    def _raise_failure(self) -> None:
        """Raised anew each time, or its traceback would grow, and hold the frames of all who asked."""
        if self._failure is not None:
            raise self._failure.with_traceback(self._trace)

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the thread that would end the load is in another process. One that was over before a fork is over in
        both."""
        return not self._over.is_open and os.getpid() != self._process

    def _raise_in_fork(self) -> None:
        if self._is_elsewhere:
            raise UsageError(OF_ANOTHER_PROCESS, hint=LOAD_AFTER_FORK)

    def cancel(self) -> None:
        """Stop the load between two chunks, give its memory back, and return when that is done. Harmless when over.

        In a callback, in `events` and in a transform it returns at once, and the load stops when that has returned; a
        callback that waits for another thread to cancel waits for ever.
        """
        self._raise_in_fork()
        self._watched.cancel()
        if not self._watched.is_inside:
            self._over.wait()

    def on_tensor(self, callback: OnTensor) -> None:
        """Call `callback(name, tensor)` for every tensor: at once for those that are there, the others from the thread
        that brings them, which waits for it. What it raises fails the load. Two threads may be in the callback at once,
        the caller's and that one."""
        self._raise_in_fork()
        once = _Once(callback)
        self._on_tensor.append(once)  # before looking, so that it misses none
        once.tell(self.loaded)

    def on_done(self, callback: OnDone) -> None:
        """Call `callback(handle)` when the load is over, from the thread that did it; at once when it is already.

        What it raises keeps no other callback from being called, and goes to threading.excepthook.
        """
        self._raise_in_fork()
        self._on_done.append(callback)
        if self._over.is_open:
            with suppress(ValueError):  # that thread has taken it
                self._on_done.remove(callback)
                callback(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the load; cancels it when the block failed."""
        if error is None:
            self.wait()
        elif not self._is_elsewhere:
            self.cancel()

    def _arrived(self, tensors: dict[str, Tensor], nbytes: int) -> None:
        """Called by the load (`coldctl.loader.load.load`): these are there."""
        self._tensors |= tensors
        self._done_bytes += nbytes
        for once in self._on_tensor.copy():
            once.tell(tensors)

    def _finish(self, loaded: Loaded | None, failure: BaseException | None) -> None:
        """Called by the load, once: it is over."""
        if loaded is not None and self._watched.cancelled:  # by what was called for the last tensors, or since
            loaded.clear()
            loaded, failure = None, self._watched.cancellation()
        self._trace = failure.__traceback__ if failure else None
        self._loaded, self._failure = loaded, failure
        if failure is not None:
            self._tensors.clear()
        self._on_tensor.clear()
        self._over.open()
        with ExitStack() as calls:
            callbacks = []
            while self._on_done:
                with suppress(IndexError):  # whoever added it has taken it back
                    callbacks.append(self._on_done.pop(0))
            for callback in reversed(callbacks):
                calls.callback(callback, self)


class _Once:
    """Tells a callback of each tensor once, however many threads come with it."""

    def __init__(self, callback: OnTensor) -> None:
        self._callback = callback
        self._told: dict[str, object] = {}

    def tell(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            first = object()
            if self._told.setdefault(name, first) is first:
                self._callback(name, tensor)
