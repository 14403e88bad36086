"""The text of an EvictResult."""

from __future__ import annotations

from coldctl.report.escape import escape, escape_name
from coldctl.report.text.failed import failed_ranges
from coldctl.report.text.phrases import residency_method, size_and_share
from coldctl.report.text.style import Style
from coldctl.results.pages import EvictResult
from coldctl.units import format_duration, format_size


def render(result: EvictResult, style: Style) -> str:
    """What was resident before and after, what stayed and why, and whether the checkpoint is cold now."""
    lines = [f"{escape(result.path)}: {format_size(result.bytes)}", _residency(result), *_kept(result, style)]
    lines += [*failed_ranges(result.failed), _outcome(result, style)]
    return "\n".join(lines) + "\n"


def _residency(result: EvictResult) -> str:
    before = size_and_share(result.resident_before_bytes, result.bytes, result.residency_reason)
    how = residency_method(result.residency_method, result.residency_bound_bytes)
    if result.dry_run:
        return f"resident: {before}{how}"
    after = size_and_share(result.resident_after_bytes, result.bytes, result.residency_reason)
    return f"resident: {before} before, {after} after{how}, {format_duration(result.seconds)}"


def _would_drop(resident_bytes: int | None) -> str:
    if resident_bytes is None:
        return "would drop what is in memory, which could not be measured"
    # The method and its bound stand in the line above.
    return f"would drop {format_size(resident_bytes)}" if resident_bytes else "there is nothing to drop"


def _kept(result: EvictResult, style: Style) -> list[str]:
    return [style.warning("kept:") + f" {escape_name(kept.path)}: {escape(kept.reason)}" for kept in result.kept]


def _outcome(result: EvictResult, style: Style) -> str:
    if result.dry_run:
        return f"dry run: {_would_drop(result.resident_before_bytes)}; nothing was evicted"
    if result.complete:
        return style.good("complete")
    if result.resident_after_bytes is None:
        return style.warning("not complete: what stayed could not be measured")
    if result.resident_after_bytes == 0:
        return "no page that was probed is left; that none is left at all is not proved"
    return style.warning("not complete: pages stayed in memory")
