"""The text of a RepackResult."""

from __future__ import annotations

from coldctl.report.escape import escape, escape_name
from coldctl.report.text.phrases import count, extents, order, time_and_rate
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.repack import RepackResult
from coldctl.units import format_share, format_size

_FILES_NAMED = 8


def render(result: RepackResult, style: Style) -> str:
    """What was (or would be) written, how it is aligned and lies on disk, and what came along or stayed behind."""
    lines = [*_summary(result, style), *alignment(result), *files(result), *beside(result, style)]
    return "\n".join(lines) + "\n"


def _summary(result: RepackResult, style: Style) -> list[str]:
    source, target = escape(result.source), escape(result.target)
    what = f"{count(result.tensors, 'tensor')}, {format_size(result.bytes)} in {count(len(result.files), 'file')}"
    if result.dry_run:
        return [f"dry run: would repack {source} into {target}", f"  {what}; nothing was written"]
    return [
        style.good("repacked") + f" {source} into {target}",
        f"  {what}, {time_and_rate(result.bytes, result.seconds)}",
    ]


def alignment(result: RepackResult) -> list[str]:
    lines = [
        f"  {result.aligned_tensors:,} of {count(result.tensors, 'tensor')}, "
        f"{format_share(result.aligned_bytes, result.bytes)} of bytes on a page "
        f"(align {result.align}, {order(result.order, result.order_facts, result.bytes)})"
    ]
    if result.fillers:
        added = f"{count(result.fillers, 'filler tensor')} {'to be added' if result.dry_run else 'added'}"
        lines.append(f"  {added}{_refusals(result)}")
    elif result.every_adds_fillers:
        adds = count(result.every_adds_fillers, "filler tensor")
        lines.append(f"  --align every would add {adds}{_refusals(result)}")
    return lines


def _refusals(result: RepackResult) -> str:
    if not result.refused_by:
        return ""
    return f"; known to refuse such a checkpoint: {', '.join(escape_name(engine) for engine in result.refused_by)}"


def files(result: RepackResult) -> list[str]:
    rows = [
        (
            escape_name(file.path),
            format_size(file.size_bytes),
            "" if result.dry_run else extents(file.extents, file.ideal_extents, file.contiguous, file.extents_reason),
            "not preallocated" if file.preallocated is False else "",
        )
        for file in result.files
    ]
    return ["files", *table(rows, right=(1,))] if rows else []


def beside(result: RepackResult, style: Style) -> list[str]:
    lines = []
    if result.sidecars:
        lines.append(f"{'would come' if result.dry_run else 'came'} along: {_first_few(result.sidecars)}")
    if result.removed:
        lines.append(f"{'would remove' if result.dry_run else 'removed'}: {_first_few(result.removed)}")
    lines += [
        style.warning("left behind:") + f" {escape_name(skipped.path)}: {escape(skipped.reason)}"
        for skipped in result.skipped
    ]
    return lines


def _first_few(paths: list[str]) -> str:
    named = ", ".join(escape_name(path) for path in paths[:_FILES_NAMED])
    more = len(paths) - _FILES_NAMED
    return f"{named} and {more:,} more" if more > 0 else named
