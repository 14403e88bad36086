"""What fp8 can be asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coldctl.errors import UsageError
from coldctl.fp8.conventions import CONVENTIONS, FORMATS, Format, Name
from coldctl.jobs.repack import RepackOptions
from coldctl.loader.format.layout import Align
from coldctl.loader.order import Order


@dataclass(frozen=True, slots=True)
class Fp8Options:
    """`source`: a checkpoint; `target`: the folder to make, which a `report` does not need. `tensors` is a pattern for
    the names of those to quantise; None for embeddings and head. `max_error` is the relative error that is let through
    for each; None for that of the convention."""

    source: str
    target: str | None = None
    convention: Name = "raw"
    format: Format = "e4m3"
    tensors: str | None = None
    max_error: float | None = None
    report: bool = False
    allow_nonfinite: bool = False
    align: Align = "page"
    order: Order = "name"
    force: bool = False
    dry_run: bool = False

    @property
    def allowed_error(self) -> float:
        return CONVENTIONS[self.convention].max_error if self.max_error is None else self.max_error

    @property
    def as_repack(self) -> RepackOptions:
        """What a repack to the target would be asked for."""
        return RepackOptions(
            self.source, self.target or "", align=self.align, order=self.order, force=self.force, dry_run=self.dry_run
        )


def check(options: Fp8Options) -> None:
    """Raises UsageError for options that make no sense; those that a repack has are left to it."""
    if options.convention not in CONVENTIONS:
        raise UsageError(f"no such convention: {options.convention!r}", hint=f"one of {', '.join(CONVENTIONS)}")
    if options.format not in FORMATS:
        raise UsageError(f"no such format: {options.format!r}", hint=f"one of {', '.join(FORMATS)}")
    if options.max_error is not None and not 0 <= options.max_error < math.inf:
        raise UsageError(f"not a relative error: {options.max_error!r}", hint="a number from 0 on, such as 0.035")
    if options.target is None and not options.report:
        raise UsageError("no target is named", hint="name the folder to write, or ask for a report")
