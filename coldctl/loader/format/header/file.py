"""From a path to a header: the length is checked before anything is allocated, and only the header is read."""

from __future__ import annotations

import os
from typing import NamedTuple

from coldctl.errors import from_os_error
from coldctl.loader.format.header.entries import read_entries
from coldctl.loader.format.header.layout import lay_out
from coldctl.loader.format.header.model import MAX_HEADER_BYTES, PREFIX_BYTES, Header
from coldctl.loader.format.rules import Findings, fault, finding
from coldctl.loader.format.sniff import PREFIX_BYTES as SNIFF_BYTES
from coldctl.loader.format.sniff import sniff
from coldctl.loader.regular import open_regular, read_at, refusal
from coldctl.results.verify import Finding

# Below this a filesystem may keep small files elsewhere than in blocks.
_SPARSE_FROM_BYTES = 1 << 20


class Inspected(NamedTuple):
    """What one look at a file gave. `identity` is (device, inode, size, mtime_ns); None when it was not opened."""

    header: Header | None
    findings: list[Finding]
    size_bytes: int
    identity: tuple[int, int, int, int] | None


def read_header(path: str, file: str | None = None) -> Header:
    """The header of the safetensors file at `path`, called `file` in messages.

    Raises FaultError for the first fault, EnvironmentLacksError or UnreadableError when the file cannot be read. That
    it succeeds says nothing about the tensors' bytes: none is read.
    """
    header, findings = examine_file(path, file)
    for found in findings:
        if found.severity == "error":
            raise fault(found)
    assert header is not None
    return header


def examine_file(path: str, file: str | None = None) -> tuple[Header | None, list[Finding]]:
    """The header, None when it has errors, and all findings in a fixed order. Raises as read_header, but no fault."""
    looked = inspect_file(path, file)
    return looked.header, looked.findings


def inspect_file(path: str, file: str | None = None) -> Inspected:
    """As examine_file, with the size and identity of the very file that was read."""
    name = file if file is not None else os.path.basename(path)
    try:
        opened, stat = open_regular(path)
    except OSError as error:
        refused = refusal(error, path, name)
        if refused is None:
            raise from_os_error(error, "open", path) from error
        return Inspected(None, [finding(refused[0], refused[1], file=name)], 0, None)
    fd = opened.fileno()
    try:
        if hasattr(os, "posix_fadvise"):
            # Read-ahead would warm data that nobody asked for, and leave marks that have later reads go on from them.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        found = Findings(name)
        header = _read(fd, stat.st_size, found)
        if header is not None and _has_holes(fd, stat, header.header_bytes):
            kept = f"only {stat.st_blocks * 512:,} of {stat.st_size:,} bytes are stored"
            found.add("layout.sparse", f"{kept}: the rest of the data is holes")
    except OSError as error:
        raise from_os_error(error, "read", path) from error
    finally:
        opened.close()
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return Inspected(header, found.listed(), stat.st_size, identity)


def parse(header: bytes, size_bytes: int, file: str | None = None) -> tuple[Header | None, list[Finding]]:
    """The header whose JSON, padding included and length prefix not, is `header`, for a file of `size_bytes`."""
    found = Findings(file)
    return _parse(header, size_bytes, found), found.listed()


def _read(fd: int, size_bytes: int, found: Findings) -> Header | None:
    prefix = read_at(fd, 0, min(size_bytes, SNIFF_BYTES))
    if len(prefix) < min(size_bytes, SNIFF_BYTES):
        found.add("file.shrank", f"the file has a size of {size_bytes:,} bytes, but ends after {len(prefix):,}")
        return None
    json_bytes = _json_bytes(prefix, size_bytes, found)
    if json_bytes is None:
        return None
    header = read_at(fd, PREFIX_BYTES, json_bytes)
    if len(header) != json_bytes:
        found.add("file.shrank", "the file became shorter while its header was read")
        return None
    if header[:1] != b"{":
        message = f"the header begins with the byte 0x{header[0]:02x}, not with {{"
        _add_with_kind(found, "header.first-byte", message, prefix)
        return None
    return _parse(header, size_bytes, found)


def _json_bytes(prefix: bytes, size_bytes: int, found: Findings) -> int | None:
    """How long the header says it is, once it is known to be possible; else None, with the fault in `found`."""
    if len(prefix) < PREFIX_BYTES:
        what = "the file is empty" if size_bytes == 0 else f"the file has {size_bytes} bytes"
        found.add("header.too-short", f"{what}, fewer than the 8 of the header's length")
        return None
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    room = size_bytes - PREFIX_BYTES
    if length < 2:
        _add_with_kind(found, "header.length", f"the header's length is {length}, too short for a JSON object", prefix)
    elif length > max(room, MAX_HEADER_BYTES):
        message = f"its first 8 bytes, read as the header's length, say {length:,} bytes, and only {room:,} follow"
        _add_with_kind(found, "header.length", message + _byte_order(prefix, room), prefix)
    elif length > MAX_HEADER_BYTES:
        message = f"the header's length is {length:,} bytes, over the format's {MAX_HEADER_BYTES:,}"
        _add_with_kind(found, "header.too-large", message + _byte_order(prefix, room), prefix)
    elif length > room and prefix[PREFIX_BYTES : PREFIX_BYTES + 1] == b"{":
        found.add("header.truncated", f"{length - room:,} of the header's {length:,} bytes are missing")
    elif length > room:
        message = f"the header's length is {length:,} bytes, but only {room:,} follow it"
        _add_with_kind(found, "header.length", message, prefix)
    else:
        return length
    return None


def _byte_order(prefix: bytes, room: int) -> str:
    swapped = int.from_bytes(prefix[:PREFIX_BYTES], "big")
    return f" (read big-endian it would be {swapped:,})" if 2 <= swapped <= room else ""


def _add_with_kind(found: Findings, rule: str, message: str, prefix: bytes) -> None:
    """The fault, with what the file is instead of safetensors where its first bytes tell."""
    kind = sniff(prefix)
    if kind is None:
        found.add(rule, message)
    else:
        found.add(rule, f"{message}: the file is {kind[0]}", hint=kind[1])


def _parse(header: bytes, size_bytes: int, found: Findings) -> Header | None:
    if not _is_utf8(header, found):
        return None
    entries = read_entries(header, found)
    if entries is None:
        return None
    if header.rstrip(b" ").endswith((b"\n", b"\r", b"\t")):
        found.add("header.padding", "the header is padded with white space other than spaces")
    header_bytes = PREFIX_BYTES + len(header)
    tensors = lay_out(entries, header_bytes, size_bytes, found)
    if found.errors:
        return None
    warnings = tuple(found.listed())
    return Header(header_bytes, entries.metadata, tuple(tensors), warnings)


def _is_utf8(header: bytes, found: Findings) -> bool:
    try:
        header.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,} of the header, 0x{header[error.start]:02x}"
        found.add("header.utf8", f"the header is not UTF-8: {where}: {error.reason}")
        return False
    return True


def _has_holes(fd: int, stat: os.stat_result, header_bytes: int) -> bool:
    """Whether most of the file was never written.

    Few blocks alone can mean a compressing filesystem, and some filesystems count no blocks at all; a hole alone can
    be space that is allocated but unwritten. Both together are what an interrupted copy leaves.
    """
    stored = stat.st_blocks * 512
    if stat.st_size < _SPARSE_FROM_BYTES or stored == 0 or stored * 2 > stat.st_size:
        return False
    try:
        return os.lseek(fd, header_bytes, os.SEEK_HOLE) < stat.st_size
    except OSError:
        return False
