"""The tensors of a load, and how it went."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from coldctl.loader.load.tensors import Tensor
from coldctl.results.load import LoadReport, Span


class Loaded(dict[str, Tensor]):
    """Every tensor by name, in the order in which they were loaded: torch tensors, or numpy arrays.

    They are views on memory that lives as long as one of them does. `report` says how the load went, and `spans` what
    every reader and copy did when (see `coldctl.loader.load.spans`); both are made when they are first asked for.
    """

    def __init__(
        self, tensors: dict[str, Tensor], report: Callable[[], LoadReport], spans: Callable[[], tuple[Span, ...]]
    ) -> None:
        super().__init__(tensors)
        self._report = report
        self._spans = spans

    def __reduce__(self) -> tuple[type[dict[str, Tensor]], tuple[dict[str, Tensor]]]:
        """Pickled, it is the tensors alone."""
        return dict, (dict(self),)

    @cached_property
    def report(self) -> LoadReport:
        return self._report()

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return self._spans()
