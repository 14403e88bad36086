"""Where tensors start in a file: counting alignment, and arranging a new file so that most start on a page.

The format forbids gaps, so alignment comes from a header padded to a multiple of 4096 and from the order of the
tensors: sorted by the largest power of two that divides their size, descending, every tensor that is a whole
number of pages starts on a page, and every other one is aligned to at least its own power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from coldctl.loader.format.dtypes import natural_alignment_bytes
from coldctl.loader.format.header import Tensor
from coldctl.loader.order import Named
from coldctl.results.facts import AlignmentCount

PAGE_BYTES = 4096
Align = Literal["page", "every"]
ALIGNS: tuple[Align, ...] = get_args(Align)

_BOUNDARIES = (4096, 256, 64)


class Placed(NamedTuple):
    """A tensor of the new file, in data order. `source` is null for a filler of zeros."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    source: Tensor | None


def power_of_two_bytes(nbytes: int) -> int:
    """The largest power of two that divides `nbytes`, at most a page. A page for 0: an empty tensor moves nothing."""
    return min(nbytes & -nbytes, PAGE_BYTES) or PAGE_BYTES


def arrange(
    tensors: Sequence[Tensor],
    align: Align,
    key: Callable[[Named], tuple[int | bytes, ...]],
    shard_number: int,
) -> list[Placed]:
    """The data order of a new shard: by alignment group, then by `key`; `every` adds fillers after odd tensors.

    Fillers are listed after the tensor whose last page they fill, never after the last tensor of the file.
    """
    ordered = sorted(tensors, key=lambda tensor: (-power_of_two_bytes(tensor.nbytes), tensor.nbytes != 0, *key(tensor)))
    placed: list[Placed] = []
    for index, tensor in enumerate(ordered):
        placed.append(Placed(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, tensor))
        rest_bytes = -tensor.nbytes % PAGE_BYTES
        if align == "every" and rest_bytes and index < len(ordered) - 1:
            placed.append(Placed(filler_name(shard_number, index), "U8", (rest_bytes,), rest_bytes, None))
    return placed


def filler_name(shard_number: int, index: int) -> str:
    """A name that most loaders skip, as they skip rotary buffers of old checkpoints, and that no two shards share."""
    return f"_coldctl_pad.{shard_number:05d}.{index:06d}.self_attn.rotary_emb.inv_freq"


def is_filler(tensor: Tensor) -> bool:
    """Whether `tensor` is one that `arrange` added, by name and form. Its bytes are zeros."""
    return (
        tensor.name.startswith("_coldctl_pad.")
        and tensor.dtype == "U8"
        and len(tensor.shape) == 1
        and tensor.nbytes < PAGE_BYTES
    )


def fillers_for_every(tensors: Iterable[Tensor | Placed]) -> int:
    """How many fillers `--align every` would add to a shard of these tensors."""
    odd = sum(1 for tensor in tensors if tensor.nbytes % PAGE_BYTES)
    return max(odd - 1, 0)


def count_alignment(tensors: Iterable[Tensor]) -> list[AlignmentCount]:
    """How many of `tensors` start on 4096, 256 and 64 bytes of their file, and on their dtype's own size."""
    listed = list(tensors)
    counts = [_count(str(boundary), [t for t in listed if t.offset_bytes % boundary == 0]) for boundary in _BOUNDARIES]
    natural = [t for t in listed if t.offset_bytes % natural_alignment_bytes(t.dtype) == 0]
    return [*counts, _count("natural", natural)]


def on_page(tensors: Iterable[Tensor]) -> AlignmentCount:
    """How many of `tensors`, fillers left out, start on a page of their file."""
    return _count("4096", [t for t in tensors if t.offset_bytes % PAGE_BYTES == 0 and not is_filler(t)])


def _count(boundary: str, tensors: list[Tensor]) -> AlignmentCount:
    return AlignmentCount(boundary, len(tensors), sum(tensor.nbytes for tensor in tensors))
