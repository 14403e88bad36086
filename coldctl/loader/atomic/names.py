"""Giving a file a name that is free, making names last, and taking many away at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coldctl.events import Events
from coldctl.loader import syscalls

_NO_RENAMEAT2 = {errno.EINVAL, errno.ENOSYS}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_FEW_FILES = 100
_LOOK_SECONDS = 0.02
_WORKERS = 16

T = TypeVar("T")


def give_name(old: str, new: str) -> None:
    """Rename `old` to `new`. Raises FileExistsError when something stands there already.

    Where the filesystem has neither renameat2 nor hard links, what appears between the look and the rename is lost.
    """
    try:
        syscalls.rename_no_replace(old, new)
    except OSError as error:
        if error.errno not in _NO_RENAMEAT2:
            raise
        _link_and_unlink(old, new)


def _link_and_unlink(old: str, new: str) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(old, new)
    else:
        os.unlink(old)


def sync(path: str) -> None:
    """fsync the file or folder `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[str], folder: str, events: Events) -> None:
    """fsync the files or folders at `paths`, all of them on the filesystem of `folder`.

    Many are synced with the whole filesystem in one go: one by one, small files cost a write of the journal each.
    """
    if len(paths) > _FEW_FILES:
        _sync_filesystem(folder, events)
        return
    for path in paths:
        events.raise_if_stopped()
        sync(path)


def _sync_filesystem(folder: str, events: Events) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_and_close() -> None:
        try:
            syscalls.syncfs(descriptor)
        finally:
            os.close(descriptor)

    _wait_for(sync_and_close, events)


def _wait_for(work: Callable[[], None], events: Events) -> None:
    """Do `work`, which may take long and cannot be interrupted, and leave it alone when asked to stop."""
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except OSError as error:
            failures.append(error)

    worker = threading.Thread(target=attempt, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_LOOK_SECONDS)
        events.raise_if_stopped()
    for failure in failures:
        raise failure


def in_parallel(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Do `work`, which raises nothing, for every item, many at a time: ext4 takes 0.1 ms to free the blocks of a small
    file, and a process that was asked to stop has two seconds."""

    def do_share(first: int) -> None:
        for item in items[first::_WORKERS]:
            work(item)

    if len(items) <= _FEW_FILES:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(do_share, range(_WORKERS)))
