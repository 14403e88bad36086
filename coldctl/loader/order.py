"""Tensor names to tower, layer and role; and the orders in which a checkpoint can be read or laid out.

A tensor's layer is the number in the first match of `layers.N.`, `layer.N.`, `h.N.`, `blocks.N.` or `block.N.`;
the text before it names the tower, and the main tower is the one with the most bytes (a vision tower beside a
language model is read with what comes before the layers). Nothing here looks at anything but names and sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from coldctl.errors import UsageError
from coldctl.results.facts import OrderFacts

Order = Literal["name", "layers", "attention-first", "file"]
ORDERS: tuple[Order, ...] = get_args(Order)

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,9})\.", re.ASCII)
_HEADS = {"lm_head", "output", "embed_out"}
_FINAL_NORMS = {"norm", "ln_f", "final_layernorm"}
_ATTENTION = {
    "self_attn",
    "attn",
    "attention",
    "self_attention",
    "linear_attn",
    "cross_attn",
    "encoder_attn",
}

_BEFORE_LAYERS = -1


class Named(Protocol):
    """What an order needs to know of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def offset_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of the main tower. `count` is 0 when no name shows a layer; callers say so."""

    tower: str | None
    count: int

    def position(self, name: str) -> int:
        """-1 before the layers, 0 … count - 1 for a layer, `count` after them."""
        match = _LAYER.search(name)
        if match:
            return int(match[1]) if name[: match.start()] == self.tower else _BEFORE_LAYERS
        components = set(name.split("."))
        return self.count if components & (_HEADS | _FINAL_NORMS) else _BEFORE_LAYERS

    def is_attention(self, name: str) -> bool:
        """True for a weight, scale or bias of an attention block of the main tower."""
        match = _LAYER.search(name)
        return match is not None and name[: match.start()] == self.tower and not _ATTENTION.isdisjoint(name.split("."))


def in_layer(name: str) -> bool:
    """True when `name` shows a layer, of whichever tower."""
    return _LAYER.search(name) is not None


def find_layers(tensors: Iterable[Named]) -> Layers:
    """The main tower of these tensors and how many layers it has (its highest layer number, plus one)."""
    tower_bytes: Counter[str] = Counter()
    counts: dict[str, int] = {}
    for tensor in tensors:
        if match := _LAYER.search(tensor.name):
            tower = tensor.name[: match.start()]
            tower_bytes[tower] += tensor.nbytes
            counts[tower] = max(counts.get(tower, 0), int(match[1]) + 1)
    if not counts:
        return Layers(None, 0)
    tower = min(tower_bytes, key=lambda name: (-tower_bytes[name], name))
    return Layers(tower, counts[tower])


def order_facts(order: Order, tensors: Iterable[Named]) -> OrderFacts | None:
    """What `order` went by in these tensors; None for `name` and `file`, which look at no layers."""
    if order in ("name", "file"):
        return None
    listed = list(tensors)
    layers = find_layers(listed)
    attention_bytes = sum(tensor.nbytes for tensor in listed if layers.is_attention(tensor.name))
    return OrderFacts(layers.count, attention_bytes)


def sort_key(order: Order, tensors: Iterable[Named]) -> Callable[[Named], tuple[int | bytes, ...]]:
    """The key that sorts `tensors` into `order`. Within a layer, and for `name`, names go by their UTF-8 bytes.

    Raises UsageError for an order that does not exist.
    """
    if order == "file":
        return lambda tensor: (tensor.offset_bytes, tensor.nbytes, tensor.name.encode())
    if order == "name":
        return lambda tensor: (tensor.name.encode(),)
    layers = find_layers(tensors)
    if order == "layers":
        return lambda tensor: (layers.position(tensor.name), tensor.name.encode())
    if order == "attention-first":
        return lambda tensor: (
            0 if layers.is_attention(tensor.name) else 1,
            layers.position(tensor.name),
            tensor.name.encode(),
        )
    raise UsageError(f"no such order: {order!r}", hint=f"one of {', '.join(ORDERS)}")
