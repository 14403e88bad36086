"""The text of a VerifyResult: findings first, then what was looked at, the verdict last."""

from __future__ import annotations

from collections import Counter

from coldctl.report.escape import escape, escape_name
from coldctl.report.text.phrases import count, extents, time_and_rate
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.verify import Finding, VerifyResult
from coldctl.units import format_share, format_size

# One broken writer breaks every tensor in the same way: beyond these the terminal tells nothing new (--json has all).
_SHOWN_PER_RULE = 20


def render(result: VerifyResult, style: Style) -> str:
    """Each finding with its rule, place and remedy; digests, alignment and extents; one line of verdict."""
    hashed_bytes = result.tensor_bytes if result.digests_checked else 0
    lines = [
        *_findings(result.findings, style),
        f"checked {escape(result.path)}: {count(result.files, 'file')}, {count(result.tensors, 'tensor')}, "
        f"{format_size(result.bytes)}, {time_and_rate(hashed_bytes, result.seconds)}",
        *_digests(result),
        *_alignment(result),
        *_layout(result),
        verdict(result, style),
    ]
    return "\n".join(lines) + "\n"


def verdict(result: VerifyResult, style: Style) -> str:
    """`clean`, `clean, 2 warnings`, `3 errors, 1 warning`, `could not judge: …`."""
    errors = len(result.errors)
    warnings = len(result.findings) - errors
    unjudged = f"could not judge: {', '.join(escape_name(path) for path in result.unjudged)}" if result.unjudged else ""
    parts = [
        style.bad(count(errors, "error")) if errors else "",
        style.bad(unjudged) if unjudged else "",
        style.good("clean") if not errors and not unjudged else "",
        style.warning(count(warnings, "warning")) if warnings else "",
    ]
    return ", ".join(part for part in parts if part)


def _findings(findings: list[Finding], style: Style) -> list[str]:
    lines: list[str] = []
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= _SHOWN_PER_RULE:
            lines += _finding(finding, style)
    lines += [
        f"and {count(total - _SHOWN_PER_RULE, 'more finding')} of {rule}: --json has them all"
        for rule, total in seen.items()
        if total > _SHOWN_PER_RULE
    ]
    return lines


def _finding(finding: Finding, style: Style) -> list[str]:
    paint = style.bad if finding.severity == "error" else style.warning
    place = [escape_name(finding.file)] if finding.file is not None else []
    place += [f"tensor {escape_name(finding.tensor)}"] if finding.tensor is not None else []
    lines = [f"{paint(finding.severity)} {escape(finding.rule)}" + "".join(f"  {part}" for part in place)]
    lines.append(f"  {escape(finding.message)}")
    if finding.hint:
        lines.append(f"  hint: {escape(finding.hint)}")
    return lines


def _digests(result: VerifyResult) -> list[str]:
    if result.digests_reason is not None and not result.digests_checked:
        return [f"digests: not checked: {escape(result.digests_reason)}"]
    why = f" ({escape(result.digests_reason)})" if result.digests_reason is not None else ""
    return [f"digests: {result.digests_checked:,} of {count(result.digests_listed or 0, 'tensor')} checked{why}"]


def _alignment(result: VerifyResult) -> list[str]:
    if not result.alignment:
        return []
    rows = [
        (
            row.boundary if row.boundary == "natural" else f"{row.boundary} B",
            f"{row.tensors:,} of {count(result.tensors, 'tensor')}",
            f"{format_share(row.bytes, result.tensor_bytes)} of bytes",
        )
        for row in result.alignment
    ]
    return ["alignment", *table(rows, right=(0, 1, 2))]


def _layout(result: VerifyResult) -> list[str]:
    rows = [
        (
            escape_name(file.path),
            format_size(file.size_bytes),
            extents(file.extents, file.ideal_extents, file.contiguous, file.extents_reason),
        )
        for file in result.layout
    ]
    return ["extents", *table(rows, right=(1,))] if rows else []
