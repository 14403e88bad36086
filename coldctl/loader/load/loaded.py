"""The tensors of a load, and how it went."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from coldctl.loader.load.tensors import Tensor
from coldctl.results.load import LoadReport


class Loaded(dict[str, Tensor]):
    """Every tensor by name, in the order in which they were loaded: torch tensors, or numpy arrays.

    They are views on memory that lives as long as one of them does. `report` says how the load went.
    """

    def __init__(self, tensors: dict[str, Tensor], report: Callable[[], LoadReport]) -> None:
        super().__init__(tensors)
        self._report = report

    @cached_property
    def report(self) -> LoadReport:
        return self._report()
