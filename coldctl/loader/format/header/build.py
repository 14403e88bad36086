"""Building a header: the shortest JSON, padded with spaces so that the data begins on a boundary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from coldctl.errors import FaultError
from coldctl.loader.format.header.model import MAX_HEADER_BYTES, METADATA, PREFIX_BYTES, Entry
from coldctl.loader.format.rules import RULES

_encode = msgspec.json.Encoder().encode


class TensorSpec(Protocol):
    """What a header says of a tensor, without its place: that follows from the order."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...


def build(tensors: Iterable[TensorSpec], metadata: dict[str, str] | None, align: int = 4096) -> bytes:
    """The length prefix and header of a file that holds `tensors` in this order, without gaps.

    `align` divides the result's length. None as `metadata` leaves it out. Raises FaultError where readers would refuse
    the header: over MAX_HEADER_BYTES (header.too-large), or a name twice (header.duplicate-key).
    """
    document: dict[str, Entry | dict[str, str]] = {} if metadata is None else {METADATA: metadata}
    begin = 0
    for tensor in tensors:
        if tensor.name in document or tensor.name == METADATA:
            raise _fault("header.duplicate-key", f'two entries would be called "{tensor.name}"', tensor.name)
        document[tensor.name] = Entry(tensor.dtype, tensor.shape, (begin, begin + tensor.nbytes))
        begin += tensor.nbytes
    json = _encode(document)
    padded_bytes = len(json) + -(PREFIX_BYTES + len(json)) % align
    if padded_bytes > MAX_HEADER_BYTES:
        limit = f"over the {MAX_HEADER_BYTES:,} that readers take"
        raise _fault("header.too-large", f"the header would be {padded_bytes:,} bytes, {limit}", None)
    return padded_bytes.to_bytes(PREFIX_BYTES, "little") + json.ljust(padded_bytes)


def _fault(rule: str, message: str, tensor: str | None) -> FaultError:
    return FaultError(message, rule=rule, tensor=tensor, hint=RULES[rule].hint)
