"""The stages of one run as a table."""

from __future__ import annotations

from coldctl.report.bench_words import STAGES, stage_rate
from coldctl.report.html.markup import Safe, element
from coldctl.report.html.section import sentence, stopped
from coldctl.report.html.table import data_table
from coldctl.results.bench import BenchRun
from coldctl.results.load import Stage
from coldctl.units import format_moment, format_rate, format_size


def stage_table(run: BenchRun) -> Safe:
    """When each stage began, how long it went on, what it moved; those before the load have a negative start."""
    head = ("stage", "begins at", "goes on for", "bytes", "rate")
    rows = [_row(stage) for stage in sorted(run.stages, key=lambda stage: stage.start_seconds)]
    caption = f"Stages of the median run, round {run.round + 1}, {format_moment(run.seconds or 0)}"
    told = [f"Why {run.mode or 'this way'}: {stopped(run.reason)}"] if run.reason else []
    told += map(sentence, run.notes)
    table = data_table(caption, head, rows, "data narrow") if rows else None
    return element("div", table, *(element("p", text, class_="lead") for text in told))


def _row(stage: Stage) -> list[str | None]:
    rate = stage_rate(stage)
    return [
        STAGES.get(stage.name, stage.name),
        format_moment(stage.start_seconds),
        format_moment(stage.seconds),
        format_size(stage.bytes) if stage.bytes > 0 else None,
        None if rate is None else format_rate(rate),
    ]
