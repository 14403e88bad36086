"""What tensors are views of: an arena, memory of their own, or mapped files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from coldctl.loader.load.mapped import Mapping as MappedFile
from coldctl.loader.load.place import Placed, Placement
from coldctl.loader.load.tensors import Tensor, numpy_views, torch_views
from coldctl.loader.load.wanted import Wanted


class Memory(Protocol):
    """The tensors of one batch, by their numbers."""

    def views(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Those tensors, by name, in the order of `numbers`."""


def views_of(memory: Any, placed: Iterable[tuple[Wanted, int]], *, numpy: bool) -> dict[str, Tensor]:
    """Views on `memory`: a uint8 numpy array, of which torch tensors can be made too, or a torch tensor."""
    if numpy:
        return numpy_views(memory, placed)
    if not hasattr(memory, "device") or not hasattr(memory, "data_ptr"):
        import torch

        # from_numpy gives an empty array a stride of 0, and no dtype of wider elements can be viewed on that.
        memory = torch.from_numpy(memory) if len(memory) else torch.empty(0, dtype=torch.uint8)
    return torch_views(memory, placed)


class ArenaMemory:
    """One arena for all."""

    def __init__(self, arena: Any, placement: Placement, *, numpy: bool) -> None:
        self._arena = arena
        self._placement = placement
        self._numpy = numpy

    def views(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        wanted, at_bytes = self._placement.wanted, self._placement.at_bytes
        placed = zip(map(wanted.__getitem__, numbers), map(at_bytes.__getitem__, numbers), strict=True)
        return views_of(self._arena, placed, numpy=self._numpy)


class OwnMemory:
    """Memory of its own for each."""

    def __init__(self, memory: Mapping[int, Any], wanted: Sequence[Wanted], *, numpy: bool) -> None:
        self._memory = memory
        self._wanted = wanted
        self._numpy = numpy

    def views(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number in numbers:
            found |= views_of(self._memory[number], [Placed(self._wanted[number], 0)], numpy=self._numpy)
        return found


class MappedMemory:
    """The mapped files themselves, by the identity of their source."""

    def __init__(self, maps: Mapping[int, MappedFile], wanted: Sequence[Wanted], *, numpy: bool) -> None:
        self._bytes = {key: each.numpy_bytes() if numpy else each.torch_bytes() for key, each in maps.items()}
        self._wanted = wanted
        self._numpy = numpy

    def views(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number in numbers:
            wanted = self._wanted[number]
            placed = [Placed(wanted, wanted.offset_bytes)]
            found |= views_of(self._bytes[id(wanted.source)], placed, numpy=self._numpy)
        return found
