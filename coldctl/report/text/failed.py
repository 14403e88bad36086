"""The lines that name byte ranges which could not be brought in."""

from __future__ import annotations

from collections.abc import Sequence

from coldctl.report.escape import escape, escape_name
from coldctl.results.facts import FailedRange
from coldctl.units import format_size

_SHOWN = 20


def failed_ranges(failed: Sequence[FailedRange]) -> list[str]:
    """One line a range with its file, offset, length and the system's reason; a dying disk's thousandth is left out."""
    lines = [_failed(part) for part in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"  and {len(failed) - _SHOWN:,} more: --json has them all")
    return lines


def _failed(part: FailedRange) -> str:
    where = f"{escape_name(part.file)} at byte {part.offset_bytes}, {format_size(part.length_bytes)}"
    return f"  failed: {where}: {escape(part.error)}"
