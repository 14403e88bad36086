"""Which tensors are loaded, in which order, and how many of them come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coldctl.errors import InputError, UsageError
from coldctl.loader import plan
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.format.layout import is_filler
from coldctl.loader.load.options import Settings
from coldctl.loader.load.share import share
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.order import Layers
from coldctl.loader.roles import is_edge


class Planned(NamedTuple):
    """`wanted` in the order in which they are loaded; the first `first` of them are those of the first layers."""

    wanted: Sequence[Wanted]
    first: int
    replicated: tuple[str, ...]


def planned(checkpoint: Checkpoint, settings: Settings, layers: Layers | None, first_layers: int | None) -> Planned:
    """The plan. `layers` are needed only for `first_layers`, which is how many of them come first, after what is
    before all layers.

    Raises UsageError for options that make no sense for this checkpoint, and InputError for a name that it has not.
    """
    ordered = [
        Wanted(tensor.name, tensor.dtype, tensor.shape, shard.source, tensor.offset_bytes, tensor.nbytes, tensor)
        for shard, tensor in plan.ordered_tensors(checkpoint, settings.order)
        if not is_filler(tensor)
    ]
    if settings.edges_last:
        ordered.sort(key=lambda each: is_edge(each.name))
    if first_layers is not None and layers is not None:
        ordered.sort(key=lambda each: layers.position(each.name) >= first_layers)
    wanted, replicated = _shared(ordered, settings)
    if settings.names is not None:
        named = _named(ordered, settings.names)
        wanted = [each for each in wanted if each.name in named]
        replicated = tuple(name for name in replicated if name in named)
    first = 0
    if first_layers is not None and layers is not None:
        first = sum(layers.position(each.name) < first_layers for each in wanted)
        if wanted and first_layers and not first:
            raise UsageError(f"none of the first {first_layers} layers is among these tensors: nothing would be early")
    return Planned(wanted, first, replicated)


def _shared(ordered: Sequence[Wanted], settings: Settings) -> tuple[Sequence[Wanted], tuple[str, ...]]:
    if settings.tp is None and settings.stage is None and settings.experts is None:
        return ordered, ()
    pairs = [(each.source, each.tensor) for each in ordered]
    return share(pairs, tp=settings.tp, stage=settings.stage, experts=settings.experts)


def _named(ordered: Iterable[Wanted], names: Iterable[str]) -> frozenset[str]:
    """The names; InputError for one that no device would have."""
    named = frozenset(names)
    if missing := named - {each.name for each in ordered}:
        some = ", ".join(sorted(missing)[:3])
        raise InputError(
            f"{len(missing)} of the tensors that were asked for are not there: {some}",
            hint="names are exact, and no patterns: choose among those in `tensors` of the open checkpoint",
        )
    return named
