"""What an engine is given to do: tensors of a plan, where they go, and whom to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coldctl.loader.load.arrivals import Arrivals
from coldctl.loader.load.transfers import Transfer
from coldctl.loader.load.wanted import Wanted


class Batch(NamedTuple):
    """`transfers` of the tensors `wanted` into `arena` (a uint8 numpy array on the host, Bytes on a device).

    All numbers count the tensors of `wanted`. `lanes` gives the stream of each, or None for one stream; `layer_of` the
    layer of each attention tensor. `readers` is how many threads read, or None for as many as pay.
    """

    wanted: Sequence[Wanted]
    arena: Any
    transfers: Sequence[Transfer]
    arrivals: Arrivals
    lanes: Sequence[int] | None = None
    layer_of: Mapping[int, int] = {}
    readers: int | None = None


NOTHING = Batch((), None, (), Arrivals(0, ()))
"""What an engine has to do when it has nothing to do."""
