"""Tensor parallelism: which tensors are split over ranks, on which dimension, and the part of one rank.

A linear layer's weight is [out, in]. Projections that feed heads or hidden units are split on dim 0, those that sum
over them on dim 1. A module's weight, bias and scales are split together, or not at all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from coldctl.loader.format.dtypes import BITS
from coldctl.loader.format.header import Tensor
from coldctl.loader.load.wanted import Gather, Wanted
from coldctl.loader.roles import Role, role_of
from coldctl.loader.source import Source

_DIMENSIONS: dict[Role, int] = {
    **dict.fromkeys(("q", "k", "v", "gate", "up", "embedding", "head"), 0),
    **dict.fromkeys(("o", "down"), 1),
}

_PLAIN_DTYPES = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8"}
"""Weights of other dtypes hold packed elements (U8 for NVFP4 and NF4, I32 and U32 for GPTQ, AWQ and MLX)."""

_BY_ROW_OR_BLOCK = {"bias", "weight_scale", "weight_scale_inv", "weight_zero_point", "scale"}
"""Beside a weight [out, in], these are [out], [out, 1], [out, in / group] or [out / block, in / block]."""


def split_dimensions(tensors: Iterable[Tensor], ranks: int) -> dict[str, int]:
    """The dimension on which each tensor is split over `ranks`, by name. What stays whole is not in it.

    Whole stay: modules whose part is unknown or fused (`coldctl.loader.roles`); those without a 2-D `weight` of plain
    elements (GPTQ, AWQ, packed, 4 bits); those whose weight, or whose blocks of scales, the ranks do not divide; and
    those with something beside the weight that is not known to go by rows or blocks.
    """
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor in tensors:
        module, _, kind = tensor.name.rpartition(".")
        modules[module][kind] = tensor
    split: dict[str, int] = {}
    for module, members in modules.items():
        if role := role_of(f"{module}.weight"):
            split |= _split_module(members, _DIMENSIONS[role], ranks)
    return split


def part(source: Source, tensor: Tensor, dimension: int, rank: int, ranks: int) -> Wanted:
    """The `rank`th of `ranks` equal parts of `tensor` along `dimension`, which `ranks` divide."""
    shape = tensor.shape
    strips = math.prod(shape[:dimension])
    strip_bytes = tensor.nbytes // strips // ranks
    return Wanted(
        tensor.name,
        tensor.dtype,
        (*shape[:dimension], shape[dimension] // ranks, *shape[dimension + 1 :]),
        source,
        tensor.offset_bytes + rank * strip_bytes,
        strips * strip_bytes,
        tensor,
        Gather(strips, strip_bytes, ranks * strip_bytes) if strips > 1 else None,
    )


def _split_module(members: Mapping[str, Tensor], dimension: int, ranks: int) -> dict[str, int]:
    weight = members.get("weight")
    if weight is None or weight.dtype not in _PLAIN_DTYPES or len(weight.shape) != 2:
        return {}
    split = {}
    for kind, tensor in members.items():
        if math.prod(tensor.shape) == 1:
            continue
        if tensor is not weight and kind not in _BY_ROW_OR_BLOCK:
            return {}
        if _blocks(tensor, dimension) == 1:
            continue
        if not _ranks_end_on_blocks(tensor, weight, dimension, ranks):
            return {}
        split[tensor.name] = dimension
    return split


def _blocks(tensor: Tensor, dimension: int) -> int:
    """How many blocks of the weight `tensor` tells apart along `dimension`; one that tells none serves every part."""
    return tensor.shape[dimension] if dimension < len(tensor.shape) else 1


def _ranks_end_on_blocks(tensor: Tensor, weight: Tensor, dimension: int, ranks: int) -> bool:
    """Blocks are powers of two in all formats known. When the last block is not full, the quotient is none (or all is
    one block), so that a weight is never cut elsewhere than between the blocks that its scales were made for."""
    extent, blocks = weight.shape[dimension], _blocks(tensor, dimension)
    if tensor.nbytes == 0 or BITS[tensor.dtype] < 8 or blocks % ranks or extent % blocks:
        return False
    return (extent // blocks).bit_count() == 1
