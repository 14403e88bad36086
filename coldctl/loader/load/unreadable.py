"""Which page it was that could not be read, so that an error names the right tensor."""

from __future__ import annotations

from coldctl.errors import UnreadableError
from coldctl.loader.pages.warm import unreadable_pages
from coldctl.loader.source import OpenLocalFile
from coldctl.units import MIB

_MOST_BYTES = 16 * MIB


def find_unreadable(file: OpenLocalFile, name: str, offset_bytes: int, end_bytes: int) -> UnreadableError | None:
    """The error for the first page that cannot be read of a range in which a read has failed, 16 MiB of it at most.

    None when all can be read now. The kernel reads many pages in one piece, and says of it only that it failed: up to
    2 MiB when it reads through the page cache, and all that it was asked for when it reads directly or populates a map.
    """
    found = next(unreadable_pages(file.fd, offset_bytes, min(end_bytes, offset_bytes + _MOST_BYTES)), None)
    if found is None:
        return None
    at_bytes, _, why = found
    return UnreadableError(f"cannot read {name} at byte {at_bytes}: {why}", file=name, offset_bytes=at_bytes)
