"""Facts about files, orders and ranges that more than one result holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extents:
    """How a file lies on its device. `extents` counts physically contiguous runs; null, with `reason`, when unknown.

    `ideal_extents` is the fewest that the filesystem can do for this size, `contiguous` the verdict of the two;
    both null, with `reason`, where the filesystem cannot be judged (compressed, tmpfs, network).
    """

    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    largest_extent_bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class AlignmentCount:
    """Tensors (and their bytes) that start on `boundary`: bytes, or `natural` for the size of their own dtype."""

    boundary: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file beside the weights that was left behind, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What an order found in the names. `layers` of the main tower is 0 when no name shows one: then all tensors are
    one layer. `attention_bytes` are those of the attention blocks, which `attention-first` puts first."""

    layers: int
    attention_bytes: int


@dataclass(frozen=True, slots=True)
class FailedRange:
    """Bytes of a file that could not be brought in, with the system's reason."""

    file: str
    offset_bytes: int
    length_bytes: int
    error: str
