"""When a tensor can be handed out: when it has arrived, and what its transform needs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coldctl.loader.load.tensors import Tensor
from coldctl.loader.load.transform import Transform
from coldctl.loader.scratch import shortage


class Handing:
    """Takes tensors as they arrive, and gives each out once, in the order of `names`, transformed.

    It keeps no tensor longer than it must: not one that was handed out and that no other needs.
    """

    def __init__(self, names: Sequence[str], transform: Transform | None) -> None:
        self._transform = transform
        self._order = iter(names)
        self._next = next(self._order, None)
        self._arrived: dict[str, Tensor] = {}
        self._handed_out: set[str] = set()
        among = frozenset(names) if transform else frozenset()
        self._companions = {n: transform.companions(n, among) for n in names} if transform else {}
        self._needed: dict[str, int] = {}
        for companions in self._companions.values():
            for name in companions:
                self._needed[name] = self._needed.get(name, 0) + 1

    def arrive(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """What can be handed out now that `tensors` have arrived."""
        self._arrived.update(tensors)
        while self._next is not None and self._is_ready(self._next):
            name, self._next = self._next, next(self._order, None)
            yield name, self._hand_out(name)

    def _is_ready(self, name: str) -> bool:
        return name in self._arrived and all(other in self._arrived for other in self._companions.get(name, ()))

    def _hand_out(self, name: str) -> Tensor:
        tensor, companions = self._arrived[name], self._companions.get(name, ())
        if self._transform:
            with shortage(stage="allocate", tensor=name, what="host memory for what a transform makes"):
                tensor = self._transform.apply(name, tensor, {other: self._arrived[other] for other in companions})
        self._handed_out.add(name)
        for other in companions:
            self._needed[other] -= 1
        for each in dict.fromkeys((name, *companions)):
            if each in self._handed_out and not self._needed.get(each):
                del self._arrived[each]
        return tensor
