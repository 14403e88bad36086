"""The text of a StatusResult: one line a file with a small map of what is resident, then the totals."""

from __future__ import annotations

from coldctl.report.escape import escape, escape_name
from coldctl.report.text.phrases import count, extents, residency_method, size_and_share
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.pages import StatusFile, StatusResult
from coldctl.units import format_share, format_size

_BLOCKS = " ░▒▓█"
_ASCII = " .:+#"


def render(result: StatusResult, style: Style) -> str:
    """Size, residency with a map, alignment and extents of each file; the totals; what lies beside and was not read."""
    lines = [
        f"{escape(result.path)} on {escape(result.filesystem)}",
        *table([_HEADER, *(_row(file, style) for file in result.files)], right=(1, 2, 4)),
        *_how_residency_is_known(result),
        _totals(result),
        "manifest: coldctl.json" if result.manifest else "manifest: none (coldctl repack writes one)",
        *(f"ignored: {escape_name(path)}" for path in result.ignored),
    ]
    return "\n".join(lines) + "\n"


def residency_map(shares: list[float], style: Style) -> str:
    """One character a cell, first bytes first: blank only for none of it, full only for all of it."""
    ramp = _BLOCKS if style.unicode else _ASCII
    return "".join(_cell(share, ramp) for share in shares)


_HEADER = ("file", "size", "resident", "map", "on a page", "extents")


def _row(file: StatusFile, style: Style) -> tuple[str, ...]:
    return (
        escape_name(file.path),
        format_size(file.size_bytes),
        "unknown" if file.resident_bytes is None else format_share(file.resident_bytes, file.size_bytes),
        "" if file.residency_map is None else f"[{residency_map(file.residency_map, style)}]",
        f"{file.aligned_tensors:,}/{file.tensors:,}",
        extents(file.extents, file.ideal_extents, file.contiguous, file.extents_reason),
    )


def _cell(share: float, ramp: str) -> str:
    if share <= 0:
        return ramp[0]
    if share >= 1:
        return ramp[-1]
    between = ramp[1:-1]
    return between[min(int(share * len(between)), len(between) - 1)]


def _how_residency_is_known(result: StatusResult) -> list[str]:
    """One line where it is not exact: the reason is the user's or the filesystem's, so the same for all files."""
    if result.residency_reason is None:
        return []
    what = "unknown" if result.residency_method is None else "sampled"
    return [f"residency is {what}: {escape(result.residency_reason)}"]


def _totals(result: StatusResult) -> str:
    aligned = sum(file.aligned_tensors for file in result.files)
    return (
        f"total: {count(len(result.files), 'file')}, {count(result.tensors, 'tensor')}, {format_size(result.bytes)}, "
        f"resident {size_and_share(result.resident_bytes, result.bytes)}"
        f"{residency_method(result.residency_method, result.residency_bound_bytes)}, "
        f"{aligned:,} of {count(result.tensors, 'tensor')} on a page"
    )
