"""The text of a WarmResult."""

from __future__ import annotations

from coldctl.report.escape import escape
from coldctl.report.text.failed import failed_ranges
from coldctl.report.text.phrases import count, order, residency_method, size_and_share, time_and_rate
from coldctl.report.text.style import Style
from coldctl.results.pages import WarmResult
from coldctl.units import format_duration, format_size


def render(result: WarmResult, style: Style) -> str:
    """What was decided, what is resident before and after, what failed, and whether the checkpoint is warm now."""
    lines = [
        _decision(result),
        _residency(result),
        *_reading(result),
        *failed_ranges(result.failed),
        _outcome(result, style),
    ]
    return "\n".join(lines) + "\n"


_INCOMPLETE = {
    "budget": "stopped by the budget",
    "left-memory": "pages left memory again while others were read",
    "unproved": "all of it was read, but what stayed in memory cannot be told",
}


def _decision(result: WarmResult) -> str:
    budget = "no budget" if result.budget_bytes is None else f"budget {format_size(result.budget_bytes)}"
    why = f" ({escape(result.budget_reason)})" if result.budget_reason else ""
    streams = f" with {count(result.streams, 'stream')}" if result.streams else ""
    reader = f", {escape(result.reader)}{streams}" if result.reader else ""
    return (
        f"{escape(result.path)}: {format_size(result.bytes)} on {escape(result.filesystem)}, "
        f"{order(result.order, result.order_facts, result.bytes)}, {budget}{why}{reader}"
    )


def _residency(result: WarmResult) -> str:
    before = size_and_share(result.resident_before_bytes, result.bytes, result.residency_reason)
    how = residency_method(result.residency_method, result.residency_bound_bytes)
    if result.dry_run:
        return f"resident: {before}{how}"
    after = size_and_share(result.resident_after_bytes, result.bytes, result.residency_reason)
    return f"resident: {before} before, {after} after{how}"


def _reading(result: WarmResult) -> list[str]:
    if result.dry_run:
        return [f"would read: {format_size(result.planned_bytes)}; nothing was read"]
    cpu = f", {format_duration(result.cpu_seconds)} of CPU" if result.read_bytes else ""
    # Where residency is not exact, what was there already is gone over too, and nobody counts what came from the disk.
    verb = "read" if result.residency_method == "mincore" else "read or found in memory"
    return [f"{verb}: {format_size(result.read_bytes)} in {time_and_rate(result.read_bytes, result.seconds)}{cpu}"]


def _outcome(result: WarmResult, style: Style) -> str:
    if result.failed:
        return style.bad(f"not complete: {count(len(result.failed), 'range')} could not be read")
    if result.dry_run:
        return "dry run: " + ("all of it fits the budget" if result.complete else "the budget would stop it")
    if result.complete:
        return style.good("complete") + ("" if result.read_bytes else ": it was warm already")
    return style.warning(f"not complete: {_INCOMPLETE[result.incomplete_reason or 'budget']}{_left_out(result)}")


def _left_out(result: WarmResult) -> str:
    if result.incomplete_reason != "budget":
        return ""
    return f", {format_size(result.planned_bytes - result.read_bytes)} left out (--budget SIZE or none reads more)"
