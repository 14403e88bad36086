"""`coldctl.json`: what a checkpoint holds, with digests that are the same in every layout (DESIGN §10).

The manifest says nothing about the run that wrote it: same input and options give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
from blake3 import blake3

from coldctl.errors import FaultError, from_os_error
from coldctl.loader.format import rules
from coldctl.loader.format.layout import PAGE_BYTES, Align
from coldctl.loader.order import Order
from coldctl.loader.regular import NotRegularError, opened, read_at

NAME = "coldctl.json"
SCHEMA = "coldctl.manifest/1"
_FAMILY = "coldctl.manifest/"
_ROOT_PREFIX = b"coldctl.root/1\0"
_MAX_BYTES = 256 << 20


class Layout(msgspec.Struct, frozen=True):
    align: Align
    order: Order
    shards: Literal["kept"] | int
    tied: Literal["keep"]


class File(msgspec.Struct, frozen=True, gc=False):
    path: str
    size_bytes: int
    header_bytes: int
    root_b3: str


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """`block_sums` has 32 hex digits for every 4 MiB of the tensor, the last block counted whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset_bytes: int
    nbytes: int
    b3: str
    block_sums: str


class Filler(msgspec.Struct, frozen=True, gc=False):
    name: str
    file: str
    offset_bytes: int
    nbytes: int


class Tied(msgspec.Struct, frozen=True, gc=False):
    kept: str
    names: list[str]


class Manifest(msgspec.Struct, frozen=True):
    """Files stand by path, tensors and fillers by (file, offset, nbytes, name); offsets count from the file's start."""

    schema: str
    layout: Layout
    files: list[File]
    tensors: list[Tensor]
    fillers: list[Filler]
    tied: list[Tied]


class _Schema(msgspec.Struct):
    schema: str = ""


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest) + b"\n"


def root_b3(header: bytes | bytearray, digests: Iterable[bytes]) -> str:
    """The root of a file: BLAKE3 over the prefix, the header's bytes, and the digests of its tensors in file order.

    One pass over the data proves all: tensors against their digests, and header, order and completeness against this.
    """
    hasher = blake3(_ROOT_PREFIX)
    hasher.update(header)
    for digest in digests:
        hasher.update(digest)
    return hasher.hexdigest()


def position(tensor: Tensor | Filler) -> tuple[str, int, int, str]:
    return (tensor.file, tensor.offset_bytes, tensor.nbytes, tensor.name)


def load(folder: str) -> Manifest | None:
    """The manifest beside the weights in `folder`, or None when there is none.

    Raises FaultError (`manifest.malformed`, `manifest.newer`) for one that cannot be used, and what `from_os_error`
    makes of one that cannot be read.
    """
    path = os.path.join(folder, NAME)
    try:
        raw = _read(path)
    except FileNotFoundError:
        return None
    except NotRegularError as error:
        raise _fault("manifest.malformed", f"{NAME} is {error.kind}, not a regular file") from error
    except OSError as error:
        raise from_os_error(error, "read", path) from error
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
        if schema != SCHEMA and schema.startswith(_FAMILY):
            raise _fault("manifest.newer", f"{NAME} has schema {schema!r}, this coldctl reads {SCHEMA!r}")
        if schema != SCHEMA:
            raise _fault("manifest.malformed", f"{NAME} has schema {schema!r}, expected {SCHEMA!r}")
        decoded = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _fault("manifest.malformed", f"{NAME} is not a manifest: {error}") from error
    if fault := _contradiction(decoded):
        raise _fault("manifest.malformed", f"{NAME} {fault}")
    if encode(decoded) != raw:
        # Compact and in a fixed order by definition, so this finds keys given twice, and keys that nobody reads.
        raise _fault("manifest.malformed", f"{NAME} is not written as a manifest is: keys repeated, unknown or moved")
    return decoded


def _contradiction(manifest: Manifest) -> str | None:
    """What makes two readers take different things from it. None when there is nothing."""
    if not _ascends([file.path for file in manifest.files]):
        return "does not list its files by path, each once"
    if not _ascends([position(tensor) for tensor in manifest.tensors]):
        return "does not list its tensors by file and place, each once"
    if not _ascends([position(filler) for filler in manifest.fillers]):
        return "does not list its fillers by file and place, each once"
    if not all(0 < filler.nbytes < PAGE_BYTES for filler in manifest.fillers):
        return "lists a filler that does not fill a part of a page"
    if len({tensor.name for tensor in manifest.tensors}) < len(manifest.tensors):
        return "lists a tensor's name twice"
    return None


def _ascends(keys: Sequence[Any]) -> bool:
    return all(before < after for before, after in pairwise(keys))


def _read(path: str) -> bytes:
    with opened(path) as (descriptor, status):
        if status.st_size > _MAX_BYTES:
            raise _fault("manifest.malformed", f"{NAME} is over {_MAX_BYTES} bytes")
        return read_at(descriptor, 0, status.st_size)


def _fault(rule: str, message: str) -> FaultError:
    return FaultError(message, rule=rule, file=NAME, hint=rules.RULES[rule].hint)
