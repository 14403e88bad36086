"""Malformed, odd and borderline files and folders, written on demand, each with its verdict.

`write_all(folder)` writes every case below `folder`. Nothing here uses coldctl: struct and json lay out the bytes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INPUT_ERROR = "InputError"


@dataclass(frozen=True)
class Case:
    """`expect` is accept or reject; `rule` the finding that must be there: an error for reject, a warning for accept
    (None: no findings at all), or INPUT_ERROR when there is no checkpoint to judge. `tensor` is what it names, `says`
    a part of its message or hint."""

    name: str
    path: str
    expect: str
    rule: str | None = None
    tensor: str | None = None
    says: str = ""


def prefixed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of `header` and `data`, whose prefix says `length` instead of the truth where given."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(begin: int, end: int, dtype: str = "F32", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def file_of(entries: dict[str, object], data: bytes | int = b"\0\0\x80?", pad: bytes = b"") -> bytes:
    """A file with these header entries and the shortest separators between them; `data` or that many zeros."""
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + pad
    return prefixed(header, bytes(data) if isinstance(data, int) else data)


def raw_entry(dtype: str = '"F32"', shape: str = "[1]", offsets: str = "[0,4]", name: str = '"w"') -> bytes:
    """A one-tensor file whose entry is made of these pieces of JSON as they stand."""
    return prefixed(f'{{{name}:{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'.encode(), b"\0\0\x80?")


GOOD = file_of({"w": entry(0, 4)})

Content = bytes | Callable[[Path], None]

# (name, verdict, rule, tensor, part of the message or hint, content)
FileRow = tuple[str, str, str | None, str | None, str, Content]


def reject(name: str, rule: str, content: Content, tensor: str | None = None, says: str = "") -> FileRow:
    return (name, "reject", rule, tensor, says, content)


def accept(name: str, content: Content, rule: str | None = None, tensor: str | None = None, says: str = "") -> FileRow:
    return (name, "accept", rule, tensor, says, content)


def write_all(folder: Path) -> list[Case]:
    """Write every case below `folder`, which exists; FIFOs and sockets included."""
    from tests.anomaly.hostile_files import FILES
    from tests.anomaly.hostile_folders import FOLDERS
    from tests.anomaly.hostile_headers import HEADERS
    from tests.anomaly.hostile_tensors import TENSORS

    cases = []
    for name, expect, rule, tensor, says, content in (*HEADERS, *TENSORS, *FILES):
        path = folder / "files" / f"{name}.safetensors"
        _write(path, content)
        cases.append(Case(f"files/{name}", str(path), expect, rule, tensor, says))
    for name, expect, rule, tensor, says, files in FOLDERS:
        root = folder / "folders" / name
        root.mkdir(parents=True)
        for file, content in files.items():
            _write(root / file, content)
        cases.append(Case(f"folders/{name}", str(root), expect, rule, tensor, says))
    return cases


def _write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder_with(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_bytes(GOOD)

    return make


def sparse(head: bytes, size_bytes: int) -> Callable[[Path], None]:
    """A file that begins with `head`, and of which the rest was never written."""

    def make(path: Path) -> None:
        path.write_bytes(head)
        os.truncate(path, size_bytes)

    return make
