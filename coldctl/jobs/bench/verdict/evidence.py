"""The figures of a median run, seen against each other and against the limits of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coldctl.jobs.bench.verdict.yardstick import Limit, Yardstick, reads_directly, yardstick
from coldctl.results.bench import BenchRun, Contender, Limits

Rates = Mapping[str, float]
"""Bytes per second by mode: the path that was taken."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """`run` is the one in the middle, of `contender`; `tried` is what coldctl's own modes gave in the same cache state.

    `cpus` are those that the process may use. Shares of stages are of the run's seconds, 0 for what was not measured.
    """

    contender: Contender
    run: BenchRun
    limits: Limits
    tried: Rates
    on_device: bool
    cpus: int

    @property
    def seconds(self) -> float:
        assert self.run.seconds, "a run that succeeded took time"
        return self.run.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.run.bytes / self.seconds

    @property
    def yardstick(self) -> Yardstick:
        return yardstick(self.run, self.limits, on_device=self.on_device)

    @property
    def is_own(self) -> bool:
        return self.contender.kind == "coldctl"

    @property
    def comes_off_disk(self) -> bool:
        return self.run.cache == "cold" or reads_directly(self.run)

    def stage_seconds(self, name: str) -> float:
        return sum(stage.seconds for stage in self.run.stages if stage.name == name)

    def share(self, name: str) -> float:
        """How long the stage went on."""
        return self.stage_seconds(name) / self.seconds

    def stage_limit_share(self, name: str, limit: Limit | None) -> float | None:
        """How fast the stage was while it went on, as a share of the limit."""
        nbytes, seconds = sum(each.bytes for each in self.run.stages if each.name == name), self.stage_seconds(name)
        return nbytes / seconds / limit.bytes_per_second if limit and nbytes and seconds else None
