"""Having every page of a mapped range read, with the error that it is when one cannot be."""

from __future__ import annotations

import errno

from coldctl.errors import ColdctlError, UnreadableError
from coldctl.loader.load.fill import Filler
from coldctl.loader.load.place import PAGE_BYTES
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.load.unreadable import find_unreadable
from coldctl.loader.scratch import scratch
from coldctl.loader.source import OpenLocalFile
from coldctl.loader.syscalls import populate_read, read_ahead_in_large_pieces
from coldctl.units import MIB

_SCRATCH_BYTES = 1 * MIB


def populate(address: int, filler: Filler, transfer: Transfer) -> None:
    """Read the transfer's range, whose first page is mapped at `address`, into the page cache.

    Raises UnreadableError and ChangedError with file, tensor and stage.
    """
    file = filler.local(transfer)
    try:
        _populate(address, file, transfer)
    except ColdctlError as error:
        filler.locate(error, transfer)
        raise
    filler.read_bytes += transfer.nbytes


def _populate(address: int, file: OpenLocalFile, transfer: Transfer) -> None:
    nbytes = transfer.offset_bytes % PAGE_BYTES + transfer.nbytes
    read_ahead_in_large_pieces(address, nbytes)
    try:
        populate_read(address, nbytes)
    except OSError as cause:
        if cause.errno == errno.EINVAL:  # a kernel before 5.14
            _read_through(file, transfer)
            return
        file.check_unchanged()  # the kernel says the same of bad blocks and of what a file has lost
        raise _why(file, transfer, cause) from cause


def _why(file: OpenLocalFile, transfer: Transfer, cause: OSError) -> UnreadableError:
    """The first byte that cannot be read; where all can, what the kernel said, as of a hole on a full tmpfs."""
    name = transfer.source.name
    try:
        _read_through(file, transfer)
    except UnreadableError as error:
        return find_unreadable(file, name, error.offset_bytes or 0, transfer.end_offset_bytes) or error
    return UnreadableError(
        f"cannot read {name} through a mapping, from byte {transfer.offset_bytes}: {cause.strerror}",
        hint='use alloc="arena", which reads it otherwise',
        file=name,
        offset_bytes=transfer.offset_bytes,
    )


def _read_through(file: OpenLocalFile, transfer: Transfer) -> None:
    buffer = scratch(_SCRATCH_BYTES)
    for done_bytes in range(0, transfer.nbytes, _SCRATCH_BYTES):
        file.read_into(buffer[: min(_SCRATCH_BYTES, transfer.nbytes - done_bytes)], transfer.offset_bytes + done_bytes)
