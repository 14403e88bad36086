"""The aligned safetensors writer: a sink that puts every tensor where the new header says.

The exact size is allocated with fallocate before the first byte, so that the filesystem can lay the file in one
piece and a full disk shows at once. Pieces may come from many threads, for any offset. What was written is pushed
to the device as it comes, so that the sync at the end is short and dirty memory stays small.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from coldctl.errors import from_os_error
from coldctl.loader import syscalls
from coldctl.loader.format import header
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import PAGE_BYTES, Placed
from coldctl.loader.source import Source
from coldctl.units import MIB

_PUSH_BYTES = 64 * MIB
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_PUSH = {errno.ENOSYS, errno.ESPIPE}


class Home(NamedTuple):
    """Where a tensor of the new shard goes. `source` names the old shard that it comes from; null for a filler."""

    placed: Placed
    source: str | None
    offset_bytes: int


class NewShard(NamedTuple):
    """A shard to be written: its name, its exact header bytes, and its tensors in data order."""

    name: str
    header: bytes
    homes: tuple[Home, ...]
    size_bytes: int


def lay_out(name: str, placed: Sequence[tuple[Placed, str | None]], metadata: dict[str, str] | None) -> NewShard:
    """The new shard `name` of tensors in data order, each with the name of the shard that it comes from.

    Raises FaultError when its header would pass the format's cap.
    """
    built = header.build([tensor for tensor, _ in placed], metadata, align=PAGE_BYTES)
    offset_bytes = len(built)
    homes = []
    for tensor, source in placed:
        homes.append(Home(tensor, source, offset_bytes))
        offset_bytes += tensor.nbytes
    return NewShard(name, built, tuple(homes), offset_bytes)


class ShardWriter:
    """Writes a NewShard to an open file. `preallocated` is False where the filesystem has no fallocate."""

    def __init__(self, shard: NewShard, descriptor: int) -> None:
        self._name = shard.name
        self._descriptor = descriptor
        self._offsets = {
            (home.source, home.placed.source.name): home.offset_bytes for home in shard.homes if home.placed.source
        }
        self._unpushed_bytes = 0
        self._lock = threading.Lock()
        self.preallocated = self._allocate(shard.size_bytes)
        self._write(shard.header, 0)
        for home in shard.homes:
            if home.placed.source is None:
                self._write(bytes(home.placed.nbytes), home.offset_bytes)

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:
        """Raises NoSpaceError and whatever else `from_os_error` makes of a failed write."""
        self._write(piece, self._offsets[source.name, tensor.name] + start_bytes)

    def _allocate(self, size_bytes: int) -> bool:
        try:
            syscalls.fallocate(self._descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise from_os_error(error, f"allocate {size_bytes} bytes for", self._name) from error
            os.ftruncate(self._descriptor, size_bytes)
            return False
        return True

    def _write(self, data: bytes | memoryview, offset_bytes: int) -> None:
        left = memoryview(data)
        try:
            while left:
                written_bytes = os.pwrite(self._descriptor, left, offset_bytes)
                left, offset_bytes = left[written_bytes:], offset_bytes + written_bytes
            self._push(len(data))
        except OSError as error:
            raise from_os_error(error, "write", self._name) from error

    def _push(self, nbytes: int) -> None:
        """Every 64 MiB, wait for what is on its way to the device and send what came since."""
        with self._lock:
            self._unpushed_bytes += nbytes
            if self._unpushed_bytes < _PUSH_BYTES:
                return
            self._unpushed_bytes = 0
        try:
            syscalls.sync_file_range(self._descriptor, 0, 0)
        except OSError as error:
            if error.errno not in _NO_PUSH:  # without it the sync at the end takes longer, and that is all
                raise
