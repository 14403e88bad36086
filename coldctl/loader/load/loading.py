"""A load that goes on in the background: what is there already, how far it is, and a way to stop it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from coldctl.errors import CancelledError, NotLoadedError, UsageError
from coldctl.events import Events
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.tensors import Tensor

OnTensor = Callable[[str, Tensor], None]
OnDone = Callable[["Loading"], None]


class Progress(NamedTuple):
    """Bytes of tensors that have arrived, of all that will."""

    done_bytes: int
    total_bytes: int


class Watched(Events):
    """Passes events on, and stops the load when it is cancelled.

    It knows which threads are in the middle of something that the caller gave to the load: the load waits for them, so
    they cannot wait for the load.
    """

    def __init__(self, inner: Events) -> None:
        self._inner = inner
        self._inside: Counter[int] = Counter()
        self._lock = threading.Lock()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block calls what the caller gave to the load."""
        ident = threading.get_ident()
        with self._lock:
            self._inside[ident] += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside[ident] -= 1

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is in such a call."""
        with self._lock:
            return self._inside[threading.get_ident()] > 0

    def begin(self, label: str, total_bytes: int) -> None:
        with self.entered():
            self._inner.begin(label, total_bytes)

    def advance(self, nbytes: int) -> None:
        with self.entered():
            self._inner.advance(nbytes)

    def end(self) -> None:
        with self.entered():
            self._inner.end()

    def note(self, message: str) -> None:
        with self.entered():
            self._inner.note(message)

    def raise_if_stopped(self) -> None:
        if self.cancelled:
            raise CancelledError("the load was cancelled")
        with self.entered():
            self._inner.raise_if_stopped()


class Loading:
    """The handle of a load of which the first layers are there and a thread brings the rest.

    `handle[name]` is a tensor whose every byte has arrived (and was checked, where that was asked for), or
    NotLoadedError: never one that is half there. After a failure or `cancel()` it raises that failure for every name;
    tensors that were taken before stay good. Any thread may call any method.
    """

    def __init__(self, names: Iterable[str], total_bytes: int, watched: Watched) -> None:
        self._names = frozenset(names)
        self._total_bytes = total_bytes
        self._watched = watched
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._tensors: dict[str, Tensor] = {}
        self._done_bytes = 0
        self._loaded: Loaded | None = None
        self._failure: BaseException | None = None
        self._trace: TracebackType | None = None
        self._on_tensor: list[OnTensor] = []
        self._on_done: list[OnDone] = []

    def __getitem__(self, name: str) -> Tensor:
        """The tensor. Raises KeyError for one that the load does not have, NotLoadedError for one that is to come."""
        if name not in self._names:
            raise KeyError(name)
        with self._lock:
            self._raise_failure()
            if name not in self._tensors:
                raise NotLoadedError(f"{name} has not arrived")
            return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        """Whether the tensor is there already."""
        with self._lock:
            return name in self._tensors

    __iter__ = None
    """Not iterable: of what is there, `loaded` is a copy to go through."""

    @property
    def loaded(self) -> dict[str, Tensor]:
        """The tensors that are there now."""
        with self._lock:
            return dict(self._tensors)

    @property
    def done(self) -> bool:
        """Whether the load is over, one way or another: `wait` returns or raises at once."""
        return self._over.is_set()

    @property
    def progress(self) -> Progress:
        """How much has arrived so far."""
        with self._lock:
            return Progress(self._done_bytes, self._total_bytes)

    def wait(self, timeout_seconds: float | None = None) -> Loaded:
        """All tensors, when they have arrived. Raises what the load failed with, CancelledError after `cancel`, and
        TimeoutError when it is not over by then; the load goes on, and `wait` can be called again.

        Raises UsageError in a callback, in `events` and in a transform: the load waits for those.
        """
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

    def cancel(self) -> None:
        """Stop the load between two chunks, give its memory back, and return when that is done. Harmless when over.

        In a callback, in `events` and in a transform it returns at once, and the load stops when that has returned; a
        callback that waits for another thread to cancel waits for ever.
        """
        self._watched.cancel()
        if not self._watched.is_inside:
            self._over.wait()

    def on_tensor(self, callback: OnTensor) -> None:
        """Call `callback(name, tensor)` for every tensor: at once for those that are there, the others from the thread
        that brings them, which waits for it. What it raises fails the load. Two threads may be in the callback at once,
        the caller's and that one."""
        with self._lock:
            there = dict(self._tensors)
            self._on_tensor.append(callback)
        for name, tensor in there.items():
            callback(name, tensor)

    def on_done(self, callback: OnDone) -> None:
        """Call `callback(handle)` when the load is over, from the thread that did it; at once when it is already.

        What it raises keeps no other callback from being called, and goes to threading.excepthook.
        """
        with self._lock:
            if not self._over.is_set():
                self._on_done.append(callback)
                return
        callback(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the load; cancels it when the block failed."""
        if error is not None:
            self.cancel()
        else:
            self.wait()

    def _arrived(self, tensors: dict[str, Tensor], nbytes: int) -> None:
        """Called by the load (`coldctl.loader.load.load`): these are there."""
        with self._lock:
            self._tensors |= tensors
            self._done_bytes += nbytes
            callbacks = list(self._on_tensor)
        for callback in callbacks:
            for name, tensor in tensors.items():
                callback(name, tensor)

    def _finish(self, loaded: Loaded | None, failure: BaseException | None) -> None:
        """Called by the load, once: it is over."""
        with self._lock:
            self._loaded, self._failure = loaded, failure
            self._trace = failure.__traceback__ if failure else None
            if failure is not None:
                self._tensors.clear()
            self._over.set()
            callbacks = list(self._on_done)
            self._on_tensor.clear()
            self._on_done.clear()
        with ExitStack() as calls:
            for callback in reversed(callbacks):
                calls.callback(callback, self)
