"""What `fp8` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coldctl.results.repack import RepackResult

Verdict = Literal["loads", "refuses", "wrong", "untested"]


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A row and how far its direction turned: 1 - cosine of the row before and after."""

    row: int
    cosine_distance: float


@dataclass(frozen=True, slots=True)
class TensorLoss:
    """What a tensor loses by becoming FP8 and being read again in float32.

    `relative_error` is the Frobenius norm of the difference over that of the source, `max_error` the largest
    difference of two values. `flushed_share` of the values, not 0 before, are 0 after; `flushed_rows` counts rows in
    which all are; `saturated_share` were beyond the largest FP8 number, times the scale. `cosine_distance_*` and
    `worst_rows` are about rows that are not zero. Values that are not finite (`nans`, `infinities`) count in the shares
    only. `scale` names the tensor that holds the scales; null where there is none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: str | None
    relative_error: float
    max_error: float
    flushed_share: float
    flushed_rows: int
    saturated_share: float
    cosine_distance_mean: float
    cosine_distance_max: float
    worst_rows: list[WorstRow]
    nans: int
    infinities: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """What an engine does with the result: `loads` it, `refuses` it, takes it for something else and is `wrong`, or
    nobody has seen. `note` says under which condition, `source` where that stands in the engine's source."""

    engine: str
    versions: str
    verdict: Verdict
    note: str
    source: str


@dataclass(frozen=True, slots=True)
class Fp8Result:
    """`bytes_before` and `bytes_after` count the data of all tensors. `objections` says why the result must not be
    written; only a report has any. `written` is null for a report; a dry run says there what would be written."""

    source: str
    target: str | None
    convention: str
    format: str
    max_error: float
    tensors: list[TensorLoss]
    bytes_before: int
    bytes_after: int
    engines: list[EngineVerdict]
    objections: list[str]
    dry_run: bool
    written: RepackResult | None
    seconds: float
    peak_anon_bytes: int
