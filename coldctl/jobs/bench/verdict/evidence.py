"""The figures of a median run, seen against each other and against the limits of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from coldctl.jobs.bench.verdict.yardstick import Limit, Yardstick, reads_directly, yardstick
from coldctl.results.bench import BenchRun, Contender, Limits


@dataclass(frozen=True, slots=True)
class Evidence:
    """`run` is the one in the middle, of `contender`; the lower one of two, while `median_seconds` is the median.

    `cpus` are those that the process may use. Shares of stages are of the run's own seconds, 0 for what was not
    measured; how long the load took is the median.
    """

    contender: Contender
    run: BenchRun
    median_seconds: float
    limits: Limits
    on_device: bool
    cpus: int

    @property
    def run_seconds(self) -> float:
        assert self.run.seconds, "a run that succeeded took time"
        return self.run.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.run.bytes / self.median_seconds

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
        return self.stage_seconds(name) / self.run_seconds

    def stage_limit_share(self, name: str, limit: Limit | None) -> float | None:
        """How fast the stage was while it went on, as a share of the limit."""
        nbytes, seconds = sum(each.bytes for each in self.run.stages if each.name == name), self.stage_seconds(name)
        return nbytes / seconds / limit.bytes_per_second if limit and nbytes and seconds else None
