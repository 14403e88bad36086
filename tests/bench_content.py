"""What `bench` makes of names and bytes, worked out from the files alone, word by word in Python's whole numbers."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from pathlib import Path

from tests.tiny import read_folder


def added_up(data: bytes) -> int:
    """The nth page counts 2 n + 1 times."""
    return sum(int.from_bytes(data[at : at + 8], "little") * (2 * (at // 4096) + 1) for at in range(0, len(data), 8))


def total_of(data: Mapping[str, bytes]) -> int:
    """Each tensor's words, times its name's number."""
    return sum(added_up(octets) * (2 * binascii.crc32(name.encode()) + 1) for name, octets in data.items()) % 2**64


def total_of_folder(folder: Path) -> int:
    return total_of({name: stored.data for name, stored in read_folder(folder).items()})
