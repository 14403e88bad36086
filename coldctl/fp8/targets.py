"""Which tensors become FP8: the embeddings and the head, or those that a pattern names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coldctl.errors import RefusedError, UsageError
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import is_filler
from coldctl.loader.order import in_layer
from coldctl.loader.roles import is_edge, role_of

SOURCE_DTYPES = ("BF16", "F16", "F32")
_SUFFIX = ".weight"
_WIDTHS = ("hidden_size", "n_embd", "d_model")


class Target(NamedTuple):
    """A matrix [rows, columns] that becomes FP8, and the shard that holds it."""

    shard: Shard
    tensor: Tensor

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def module(self) -> str:
        return self.name.removesuffix(_SUFFIX)


def find_targets(checkpoint: Checkpoint, config: Mapping[str, Any], pattern: str | None) -> list[Target]:
    """The matrices to quantise, in file order.

    Without `pattern`: the weights of embeddings and head by their usual names (`coldctl.loader.roles`) and, where no
    name is known, the weights outside the layers that have the shape [vocab_size, hidden_size] of `config`. With it:
    every tensor whose name it matches somewhere, as `re.search` does.

    Raises UsageError for a pattern that is none, RefusedError when nothing is found, and for what cannot become FP8.
    """
    chosen = list(_matching(checkpoint, pattern) if pattern is not None else _usual(checkpoint, config))
    if not chosen:
        raise RefusedError(
            "no tensor has the name of an embedding or head"
            if pattern is None
            else f"no tensor has a name that matches {pattern!r}",
            hint="name the tensors with --tensors REGEX: coldctl verify and coldctl.json show what there is",
        )
    for target in chosen:
        _check(target.tensor)
    return chosen


def _usual(checkpoint: Checkpoint, config: Mapping[str, Any]) -> list[Target]:
    weights = [target for target in _all(checkpoint) if _is_weight(target.tensor)]
    return [t for t in weights if is_edge(t.name)] or [t for t in weights if _has_shape_of_embedding(t.tensor, config)]


def _matching(checkpoint: Checkpoint, pattern: str) -> Iterator[Target]:
    try:
        matches = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"not a regular expression: {pattern!r}: {error}", hint="see Python's re") from error
    return (target for target in _all(checkpoint) if matches(target.name))


def _all(checkpoint: Checkpoint) -> Iterator[Target]:
    return (Target(s, tensor) for s in checkpoint.shards for tensor in s.header.tensors if not is_filler(tensor))


def _is_weight(tensor: Tensor) -> bool:
    return tensor.name.endswith(_SUFFIX) and len(tensor.shape) == 2 and tensor.nbytes > 0


def _has_shape_of_embedding(tensor: Tensor, config: Mapping[str, Any]) -> bool:
    nested = config.get("text_config")
    parts = [config, nested] if isinstance(nested, Mapping) else [config]
    shapes = [(part.get("vocab_size"), part.get(width)) for part in parts for width in _WIDTHS]
    return tensor.shape in shapes and role_of(tensor.name) is None and not in_layer(tensor.name)


def _check(tensor: Tensor) -> None:
    what = f"tensor {tensor.name}, {tensor.dtype} {list(tensor.shape)},"
    if tensor.dtype.startswith(("F8_", "F6_", "F4", "I", "U")):
        error = RefusedError(f"{what} is quantised already, or no weight", hint="quantise from the original checkpoint")
    elif tensor.dtype not in SOURCE_DTYPES or len(tensor.shape) != 2 or tensor.nbytes == 0:
        kinds = f"{', '.join(SOURCE_DTYPES[:-1])} or {SOURCE_DTYPES[-1]}"
        error = RefusedError(f"{what} cannot become FP8", hint=f"choose matrices of {kinds} that hold something")
    else:
        return
    error.tensor = tensor.name
    raise error
