"""Just enough of PNG to look at a screenshot: 8 bits a channel, RGB or RGBA, not interlaced (W3C PNG, 3rd edition)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

Pixel = tuple[int, int, int]


def size(path: Path) -> tuple[int, int]:
    """Width and height in pixels."""
    width, height, *_ = _header(path.read_bytes())
    return width, height


def top_rows(path: Path, count: int) -> list[list[Pixel]]:
    """The first `count` rows of pixels."""
    data = path.read_bytes()
    width, _, depth, colour, *_, interlaced = _header(data)
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[colour]
    raw = zlib.decompress(b"".join(body for kind, body in _chunks(data) if kind == b"IDAT"))
    stride = width * channels
    rows = []
    above = bytes(stride)
    for start in range(0, count * (stride + 1), stride + 1):
        above = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, channels)
        rows.append([(above[i], above[i + 1], above[i + 2]) for i in range(0, stride, channels)])
    return rows


def _header(data: bytes) -> tuple[int, ...]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    kind, body = _chunks(data)[0]
    assert kind == b"IHDR"
    return struct.unpack(">IIBBBBB", body)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks = []
    place = 8
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += length + 12
    return chunks


def _unfiltered(kind: int, row: bytearray, above: bytes, channels: int) -> bytes:
    """A row with its filter (0 none, 1 sub, 2 up, 3 average, 4 Paeth) taken away."""
    for i in range(len(row)):
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        guess = (0, left, above[i], (left + above[i]) // 2, _paeth(left, above[i], corner))[kind]
        row[i] = (row[i] + guess) & 0xFF
    return bytes(row)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda each: abs(guess - each))
