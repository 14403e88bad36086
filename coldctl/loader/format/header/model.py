"""What a header says, in the words that the rest of coldctl uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from coldctl.results.verify import Finding

# Readers take no longer header (safetensors: MAX_HEADER_SIZE). The JSON and its padding count, the prefix does not.
MAX_HEADER_BYTES = 100_000_000
PREFIX_BYTES = 8
METADATA = "__metadata__"

# Offsets and dimensions of a file that can exist fit an i64. What does not is left to the exact path, which says why.
WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Entry(msgspec.Struct, gc=False):
    """One tensor as the header's JSON gives it. `data_offsets` count from the end of the header.

    Every field is required and there is no default: the proof in `entries` rests on that.
    """

    dtype: str
    shape: tuple[WholeNumber, ...]
    data_offsets: tuple[WholeNumber, WholeNumber]


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor whose bytes lie in its file at `offset_bytes`, counted from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """A header without errors. `header_bytes` counts the length prefix too, so data begins there.

    `tensors` are sorted by (offset_bytes, nbytes, name); `metadata` is None where the file has none.
    """

    header_bytes: int
    metadata: dict[str, str] | None
    tensors: tuple[Tensor, ...]
    warnings: tuple[Finding, ...]
