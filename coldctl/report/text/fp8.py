"""The text of an Fp8Result."""

from __future__ import annotations

from coldctl.report.escape import escape, escape_name
from coldctl.report.text.phrases import count
from coldctl.report.text.repack import alignment, beside, files
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.fp8 import EngineVerdict, Fp8Result, TensorLoss
from coldctl.units import format_duration, format_share, format_size

_HEADS = ("tensor", "relative error", "max error", "flushed", "saturated", "1 - cosine", "worst rows")


def render(result: Fp8Result, style: Style) -> str:
    """What each tensor loses, what is saved, which engines load it, and what was (or would be) written."""
    lines = [_title(result, style), *_losses(result), _saved(result), _engines(result.engines, style)]
    lines += [style.bad("refused: ") + escape(reason) for reason in result.objections]
    if result.written is not None:
        lines += [*alignment(result.written), *files(result.written), *beside(result.written, style)]
    return "\n".join(lines) + "\n"


def _title(result: Fp8Result, style: Style) -> str:
    what = f"{count(len(result.tensors), 'tensor')} in {result.format} for {result.convention}"
    source = escape(result.source)
    if result.target is None:
        return f"report: {source}: {what}; nothing was written"
    if result.dry_run:
        return f"dry run: would convert {source} into {escape(result.target)}: {what}; nothing was written"
    took = format_duration(result.seconds)
    return style.good("converted") + f" {source} into {escape(result.target)}: {what}, {took}"


def _losses(result: Fp8Result) -> list[str]:
    rows = [_HEADS, *(_loss(loss) for loss in result.tensors)]
    lines = table(rows, right=range(1, len(_HEADS) - 1))
    for loss in result.tensors:
        if loss.nans or loss.infinities:
            lines.append(f"  {escape_name(loss.name)}: {loss.nans:,} values are NaN, {loss.infinities:,} infinite")
        if loss.flushed_rows:
            lines.append(f"  {escape_name(loss.name)}: {count(loss.flushed_rows, 'row')} flushed to zero")
    return lines


def _loss(loss: TensorLoss) -> tuple[str, ...]:
    return (
        escape_name(loss.name),
        f"{loss.relative_error:.4f}",
        f"{loss.max_error:.3g}",
        f"{loss.flushed_share:.2%}",
        f"{loss.saturated_share:.2%}",
        f"{loss.cosine_distance_mean:.1e}",
        ", ".join(f"{worst.row} ({worst.cosine_distance:.1e})" for worst in loss.worst_rows[:3]),
    )


def _saved(result: Fp8Result) -> str:
    saved_bytes = result.bytes_before - result.bytes_after
    if saved_bytes <= 0:
        return f"{format_size(result.bytes_before)} before, {format_size(result.bytes_after)} after: nothing is saved"
    share = format_share(saved_bytes, result.bytes_before)
    sizes = f"{format_size(result.bytes_before)} before, {format_size(result.bytes_after)} after"
    return f"{sizes}: {format_size(saved_bytes)} saved ({share})"


def _engines(engines: list[EngineVerdict], style: Style) -> str:
    """One line: `loads in: vllm 0.33 (casts on load); refused by: …; read wrong by: …; not tried: …`."""
    groups = [
        (style.good("loads in"), "loads"),
        ("refused by", "refuses"),
        (style.bad("read wrong by"), "wrong"),
        ("not tried in", "untested"),
    ]
    named = [(title, [_engine(each) for each in engines if each.verdict == verdict]) for title, verdict in groups]
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in named if names)


def _engine(each: EngineVerdict) -> str:
    return f"{each.engine} {each.versions}" + (f" ({each.note})" if each.note else "")
