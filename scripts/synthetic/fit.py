"""The model of a family that fills a given number of bytes best."""

from __future__ import annotations

import math

from coldctl.errors import UsageError
from coldctl.units import GIB
from scripts.synthetic.families import VOCAB_SHARE, Size
from scripts.synthetic.tensors import tensors_of, total_bytes

HIDDEN_SIZES = (8192, 7168, 6144, 5120, 4096, 3072, 2048, 1536, 1024, 768, 512, 256, 128, 64)


def layers_for_count(shape: str, hidden: int, dtype: str, count: int, experts: int) -> int:
    """The fewest layers with which the model has `count` tensors or more."""
    two, three = (len(tensors_of(shape, Size(hidden, layers, 64, experts), dtype)) for layers in (2, 3))
    return max(2, 2 + math.ceil((count - two) / (three - two)))


def fit(shape: str, wanted_bytes: int, dtype: str, count: int | None = None) -> Size:
    """The widest model of the family that fits into `wanted_bytes`, as deep as then fits; the embedding takes the rest.

    Raises UsageError when not even the narrowest one fits.
    """
    experts = 0 if shape != "deepseek-moe" else 256 if count or wanted_bytes >= GIB else 16

    def bytes_of(hidden: int, layers: int, vocab: int) -> int:
        return total_bytes(tensors_of(shape, Size(hidden, layers, vocab, experts), dtype, count))

    for hidden in HIDDEN_SIZES:
        vocab = hidden * VOCAB_SHARE[shape]
        layers = max(2, hidden // 128) if count is None else layers_for_count(shape, hidden, dtype, count, experts)
        spare = wanted_bytes - bytes_of(hidden, layers, vocab)
        if spare >= 0:
            break
    else:
        raise UsageError(
            f"{shape} does not fit into {wanted_bytes} bytes: the smallest is {wanted_bytes - spare} bytes"
        )
    if count is None:
        layer = bytes_of(hidden, layers + 1, vocab) - bytes_of(hidden, layers, vocab)
        layers, spare = layers + spare // layer, spare % layer
    row = (bytes_of(hidden, layers, vocab + 64) - bytes_of(hidden, layers, vocab)) // 64
    return Size(hidden, layers, vocab + spare // row // 64 * 64, experts)
