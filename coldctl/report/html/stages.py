"""The stages of one run as a table, those before its load above it as a strip of their own."""

from __future__ import annotations

from coldctl.report.bench_words import STAGES, stage_rate
from coldctl.report.html.chart import Row, bar, chart
from coldctl.report.html.markup import NOTHING, Safe, element
from coldctl.report.html.scale import Linear
from coldctl.report.html.section import sentence, stopped
from coldctl.report.html.table import data_table
from coldctl.results.bench import BenchRun
from coldctl.results.load import Stage
from coldctl.units import format_moment, format_rate, format_size


def stage_table(run: BenchRun) -> Safe:
    """When each stage began, how long it went on, what it moved; those before the load have a negative start, and are
    drawn as well: the axis of a timeline begins with the load."""
    head = ("stage", "begins at", "goes on for", "bytes", "rate")
    rows = [_row(stage) for stage in sorted(run.stages, key=lambda stage: stage.start_seconds)]
    caption = f"Stages of the median run, round {run.round + 1}, {format_moment(run.seconds or 0)}"
    told = [f"Why {run.mode or 'this way'}: {stopped(run.reason)}"] if run.reason else []
    told += map(sentence, run.notes)
    table = data_table(caption, head, rows, "data narrow") if rows else None
    return element("div", _before(run), table, *(element("p", text, class_="lead") for text in told))


def _before(run: BenchRun) -> Safe:
    """The stages that began before the load did, up to its first step at 0."""
    stages = sorted((stage for stage in run.stages if stage.start_seconds < 0), key=lambda stage: stage.start_seconds)
    if not stages:
        return NOTHING
    scale = Linear(0.0, low=stages[0].start_seconds)
    caption = f"Before the load of the median run, round {run.round + 1}"
    rows = [_strip(stage, scale) for stage in stages]
    return element("div", element("p", caption, class_="remark"), chart(rows, scale, "seconds", label=caption))


def _strip(stage: Stage, scale: Linear) -> Row:
    name, took = STAGES.get(stage.name, stage.name), format_moment(stage.seconds)
    end_seconds = min(stage.start_seconds + stage.seconds, 0.0)
    mark = bar(scale.at(stage.start_seconds), scale.at(end_seconds), 10, 12, "prepare")
    return Row(name, mark, took, f"{name}: {took}, {format_moment(-stage.start_seconds)} before the load")


def _row(stage: Stage) -> list[str | None]:
    rate = stage_rate(stage)
    return [
        STAGES.get(stage.name, stage.name),
        format_moment(stage.start_seconds),
        format_moment(stage.seconds),
        format_size(stage.bytes) if stage.bytes > 0 else None,
        None if rate is None else format_rate(rate),
    ]
