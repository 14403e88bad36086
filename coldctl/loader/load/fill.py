"""The bytes of one transfer into memory: in one piece, scattered over slots, or gathered from strips."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np

from coldctl.errors import ColdctlError, EnvironmentLacksError, UnreadableError
from coldctl.loader.load.place import PAGE_BYTES, is_aligned
from coldctl.loader.load.route import Cause, Routes
from coldctl.loader.load.staging import staging
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.load.unreadable import find_unreadable
from coldctl.loader.load.wanted import Gather, Wanted
from coldctl.loader.source import LastOpened, OpenLocalFile, OpenSource, Source
from coldctl.loader.syscalls import populate_write
from coldctl.units import MIB

_ROWS_BYTES = 4 * MIB
_STEP_BYTES = 4 * MIB
_CLEARING = [threading.Lock() for _ in range(max(1, len(os.sched_getaffinity(0)) // 2))]
"""One for half of the CPUs. The kernel clears fresh pages before a read may land in them, which takes about as long as
copying; threads that all clear at once keep off the CPUs what brings the bytes, and then nothing is read meanwhile."""


_fillers = itertools.count()


def _unlock_in_child() -> None:
    """A thread that held one does not exist there."""
    _CLEARING[:] = [threading.Lock() for _ in _CLEARING]


os.register_at_fork(after_in_child=_unlock_in_child)


class Filler:
    """Reads transfers for one thread; it keeps the last file open, for buffered and for direct reads.

    `wanted` is the plan, to name what could not be read. `read_bytes` counts what was asked of the files, and `caused`
    the bytes of transfers by why they came as they did.
    """

    def __init__(self, routes: Routes, wanted: Sequence[Wanted]) -> None:
        self.read_bytes = 0
        self.caused: Counter[Cause] = Counter()
        self._routes = routes
        self._clearing = _CLEARING[next(_fillers) % len(_CLEARING)]
        self._wanted = wanted
        self._buffered = LastOpened(lambda source: source.open(), checked=True)
        self._direct: tuple[Source, OpenSource | None] | None = None

    def fill(self, transfer: Transfer, span: memoryview, *, moved: Cause | None = None) -> None:
        """Read `transfer` into `span`, as long as its range of the arena.

        Direct reads land in place where `span` begins at the file's offset modulo 4096; `moved` says why it does not,
        where that is not for where tensors are in the file. Raises UnreadableError and
        ChangedError with file, tensor and stage.
        """
        if not transfer.nbytes:
            return
        try:
            if transfer.gather:
                self._gather(transfer, transfer.gather, span)
                self.caused["gathered"] += transfer.nbytes
            elif transfer.in_place:
                self._in_place(transfer, span, moved)
            else:
                pieces = [span[at_bytes : at_bytes + nbytes] for at_bytes, nbytes in transfer.pieces]
                self._open(transfer).scatter(pieces, transfer.offset_bytes)
                self.read_bytes += transfer.nbytes
                self.caused[moved or self._why_moved(transfer)] += transfer.nbytes
        except ColdctlError as error:
            exact = self._exactly(error, transfer)
            self.locate(exact, transfer)
            raise exact from error.__cause__

    def _exactly(self, error: ColdctlError, transfer: Transfer) -> ColdctlError:
        if not isinstance(error, UnreadableError) or error.offset_bytes is None:
            return error
        opened = self._open(transfer)
        if not isinstance(opened, OpenLocalFile):
            return error
        return find_unreadable(opened, transfer.source.name, error.offset_bytes, transfer.end_offset_bytes) or error

    def local(self, transfer: Transfer) -> OpenLocalFile:
        """The local file that `transfer` reads, for mapping it.

        Raises EnvironmentLacksError for a source of another kind, and ChangedError; with file, tensor and stage.
        """
        try:
            opened = self._open(transfer)
            if not isinstance(opened, OpenLocalFile):
                raise EnvironmentLacksError(f"{transfer.source.name} is no local file, so it cannot be mapped")
        except ColdctlError as error:
            self.locate(error, transfer)
            raise
        return opened

    def locate(self, error: ColdctlError, transfer: Transfer) -> None:
        """Say what was read when it happened, unless the error knows."""
        error.locate(stage="read", file=transfer.source.name, tensor=_tensor_at(error, transfer, self._wanted))

    def _open(self, transfer: Transfer) -> OpenSource:
        return self._buffered.get(transfer.source, transfer.name)

    def _in_place(self, transfer: Transfer, span: memoryview, moved: Cause | None) -> None:
        source, offset_bytes, nbytes = transfer.source, transfer.offset_bytes, transfer.nbytes
        self.read_bytes += nbytes
        if (_address(span) - offset_bytes) % PAGE_BYTES:
            cause, is_trial = moved or self._why_moved(transfer), False
        else:
            cause, is_trial = self._routes.way(source, offset_bytes, nbytes)
        begun_seconds = time.perf_counter()
        if cause != "direct":
            self._open(transfer).read_into(span, offset_bytes)
            self.caused[cause] += nbytes
        elif not self._directly(transfer, span):
            return
        if is_trial:
            self._routes.record(cause, nbytes, time.perf_counter() - begun_seconds)

    def _why_moved(self, transfer: Transfer) -> Cause:
        return "short" if all(map(is_aligned, self._wanted[transfer.first : transfer.end])) else "moved"

    def _directly(self, transfer: Transfer, span: memoryview) -> bool:
        """Whole pages past the page cache, the ends of the range through it; False where that is refused, and all was
        read through it."""
        source, offset_bytes = transfer.source, transfer.offset_bytes
        buffered, direct = self._open(transfer), self._open_direct(source)
        head_bytes = min(-offset_bytes % PAGE_BYTES, len(span))
        tail_bytes = len(span) - (len(span) - head_bytes) % PAGE_BYTES
        pages = span[head_bytes:tail_bytes]
        try:
            if direct is None:
                raise _refused(source)
            self._whole_pages(direct, offset_bytes + head_bytes, pages)
        except ColdctlError as error:
            if not _is_refusal(error):
                raise
            self._routes.refuse_direct(source, error)
            buffered.read_into(span, offset_bytes)
            self.caused["refused"] += len(span)
            return False
        if head_bytes:
            buffered.read_into(span[:head_bytes], offset_bytes)
        if tail_bytes < len(span):
            buffered.read_into(span[tail_bytes:], offset_bytes + tail_bytes)
        self.caused["direct"] += len(pages)
        self.caused["ends"] += len(span) - len(pages)
        return True

    def _whole_pages(self, direct: OpenSource, offset_bytes: int, pages: memoryview) -> None:
        address = _address(pages)
        for done_bytes in range(0, len(pages), _STEP_BYTES):
            step = pages[done_bytes : done_bytes + _STEP_BYTES]
            with self._clearing:
                populate_write(address + done_bytes, len(step))
            direct.read_into(step, offset_bytes + done_bytes)

    def _open_direct(self, source: Source) -> OpenSource | None:
        if self._direct is None or self._direct[0] is not source:
            self._close_direct()
            self._direct = (source, source.open_direct())
        return self._direct[1]

    def _close_direct(self) -> None:
        if self._direct and self._direct[1]:
            self._direct[1].__exit__(None, None, None)
        self._direct = None

    def _gather(self, transfer: Transfer, gather: Gather, span: memoryview) -> None:
        """Strips of a page and more one by one; shorter ones touch every page anyway, so whole rows are read."""
        opened = self._open(transfer)
        if gather.strip_bytes >= PAGE_BYTES or gather.pitch_bytes > _ROWS_BYTES:
            for strip in range(gather.strips):
                into = span[strip * gather.strip_bytes : (strip + 1) * gather.strip_bytes]
                opened.read_into(into, transfer.offset_bytes + strip * gather.pitch_bytes)
            self.read_bytes += transfer.nbytes
            return
        rows_at_once = _ROWS_BYTES // gather.pitch_bytes
        scratch = staging(min(rows_at_once, gather.strips) * gather.pitch_bytes, transfer).data
        for first in range(0, gather.strips, rows_at_once):
            rows = min(rows_at_once, gather.strips - first)
            into = span[first * gather.strip_bytes : (first + rows) * gather.strip_bytes]
            self._pick(opened, transfer.offset_bytes + first * gather.pitch_bytes, gather, scratch, into)

    def _pick(
        self, opened: OpenSource, offset_bytes: int, gather: Gather, scratch: memoryview, into: memoryview
    ) -> None:
        rows = len(into) // gather.strip_bytes
        nbytes = (rows - 1) * gather.pitch_bytes + gather.strip_bytes
        opened.read_into(scratch[:nbytes], offset_bytes)
        whole = np.frombuffer(scratch, dtype=np.uint8)[: rows * gather.pitch_bytes].reshape(rows, gather.pitch_bytes)
        np.frombuffer(into, dtype=np.uint8).reshape(rows, gather.strip_bytes)[:] = whole[:, : gather.strip_bytes]
        self.read_bytes += nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_direct()
        try:
            self._buffered.__exit__(kind, error, trace)
        except ColdctlError as changed:
            changed.locate(stage="read")
            raise


def _refused(source: Source) -> ColdctlError:
    refusal = EnvironmentLacksError(f"{source.name}: its filesystem takes no direct reads")
    refusal.__cause__ = OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return refusal


def _is_refusal(error: ColdctlError) -> bool:
    """Whether the filesystem takes no direct reads of this kind, as opposed to bytes that cannot be read."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EINVAL, errno.EOPNOTSUPP)


def _address(span: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(span)) if span else 0


def _tensor_at(error: ColdctlError, transfer: Transfer, wanted: Sequence[Wanted]) -> str:
    """The tensor that holds the byte which the error names, or the first of the transfer."""
    if error.offset_bytes is not None:
        for each in wanted[transfer.first : transfer.end]:
            if each.offset_bytes <= error.offset_bytes < each.tensor.offset_bytes + each.tensor.nbytes:
                return each.name
    return transfer.name
