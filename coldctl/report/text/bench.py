"""The text of a BenchResult: what was measured on what, every contender in a row, and what holds the best one."""

from __future__ import annotations

from collections import defaultdict

from coldctl.report.bench_words import LIMITS
from coldctl.report.escape import escape
from coldctl.report.runs import cache_states, peak_of_leading, ranked
from coldctl.report.text.bench_cache import cache_lines
from coldctl.report.text.bench_phrases import NO_LIMIT, NOTHING_JUDGED, before_load, bounds, has_no_limit
from coldctl.report.text.phrases import count
from coldctl.report.text.style import Style
from coldctl.report.text.table import table
from coldctl.results.bench import BenchResult, DeviceFacts, HostFacts, Limits, Regression, Summary
from coldctl.units import format_duration, format_moment, format_rate, format_ratio, format_size

_NAME_LIMIT = 40
_REASON_LIMIT = 160
_NONE = "-"


def render(result: BenchResult, style: Style) -> str:
    """The machine; a row for each contender; the best of each cache state in detail; the limits; the verdict. Blocks
    of lines with a blank one between them."""
    blocks = [
        _header(result),
        _loads(result, style),
        *(cache_lines(result, cache, style) for cache in cache_states(result)),
        _memory(result),
        _limits(result.limits),
        [style.warning("note:") + f" {escape(note)}" for note in result.notes],
        _regressions(result, style),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _header(result: BenchResult) -> list[str]:
    what = f"{format_size(result.bytes)}, {count(result.tensors, 'tensor')} in {count(result.files, 'file')}"
    how = f"onto {escape(result.device)}, {count(result.rounds, 'round')} in {format_duration(result.seconds)}"
    lines = [f"{escape(result.path)}: {what}, {how}", f"  {_host(result.host)}"]
    return [*lines, f"  {_device(result.host.device)}"] if result.host.device else lines


def _host(host: HostFacts) -> str:
    memory = "" if host.memory_bytes is None else f", {format_size(host.memory_bytes)}"
    parts = [
        escape(host.filesystem) + (f" on {escape(host.block_device)}" if host.block_device else ""),
        f"{escape(host.cpu)} ({count(host.cpus, 'CPU')}{memory})",
        f"kernel {escape(host.kernel)}",
        f"virtual ({escape(host.virtual)})" if host.virtual else "",
        "" if host.load_average is None else f"load {host.load_average:.2f}",
    ]
    return ", ".join(part for part in parts if part)


def _device(device: DeviceFacts) -> str:
    width = "" if device.pcie_width is None else f" x{device.pcie_width}"
    parts = [
        escape(device.name),
        "" if device.memory_bytes is None else format_size(device.memory_bytes),
        f"driver {escape(device.driver)}" if device.driver else "",
        f"CUDA {escape(device.cuda)}" if device.cuda else "",
        "" if device.pcie_generation is None else f"PCIe {device.pcie_generation}{width}",
    ]
    return ", ".join(part for part in parts if part)


def _loads(result: BenchResult, style: Style) -> list[str]:
    versions = {each.name: f" {each.version}" if each.version else "" for each in result.contenders}
    percentiles = [
        (label, field)
        for label, field in (("P90", "p90_seconds"), ("P99", "p99_seconds"))
        if any(getattr(summary, field) is not None for summary in result.summaries)
    ]
    header = (
        "contender",
        "cache",
        "median",
        "[min - max]",
        *(label for label, _ in percentiles),
        "rate",
        "of its limit",
    )
    rows: list[tuple[str, ...]] = [header]
    for cache in cache_states(result):
        for summary in ranked(result, cache):
            name = escape(summary.contender + versions.get(summary.contender, ""), _NAME_LIMIT)
            far = [_seconds(getattr(summary, field)) for _, field in percentiles]
            rows += [(name, cache, *row) for row in _summary_rows(result, summary, far, style)]
    unlimited = any(summary.runs and has_no_limit(result, summary) for summary in result.summaries)
    why = [f"  {_NONE}: {NO_LIMIT}"] if unlimited else []
    return [*table(rows, right=(2, *range(4, 5 + len(percentiles))), indent=""), *why]


def _summary_rows(result: BenchResult, summary: Summary, far: list[str], style: Style) -> list[tuple[str, ...]]:
    """A row for the runs that loaded, and one for those that failed."""
    rows: list[tuple[str, ...]] = []
    if summary.runs:
        spread = f"[{_seconds(summary.min_seconds)} - {_seconds(summary.max_seconds)}]" if summary.runs > 1 else "1 run"
        rate = "not measured" if summary.bytes_per_second is None else format_rate(summary.bytes_per_second)
        rows.append((_seconds(summary.median_seconds), spread, *far, rate, _share(result, summary)))
    if summary.failed:
        why = escape(summary.error or "no reason given", _REASON_LIMIT)
        failed = f"{summary.failed:,} of {summary.runs + summary.failed:,}"
        rows.append(("failed", failed, *[""] * len(far), "", style.bad(why)))
    return rows


def _seconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_moment(seconds)


def _share(result: BenchResult, summary: Summary) -> str:
    if has_no_limit(result, summary):
        return _NONE
    if summary.limit is None or summary.limit_share is None:
        return "not measured"
    return f"{format_ratio(summary.limit_share)} of {LIMITS.get(summary.limit, escape(summary.limit, _NAME_LIMIT))}"


def _memory(result: BenchResult) -> list[str]:
    memory = peak_of_leading(result)
    if memory is None:
        return []
    peak = f"peak {format_size(memory.peak_anon_bytes)}, the highest of all runs of the leading ways"
    return ["anonymous memory of the process (page cache not counted)", f"  {peak}, {before_load(memory)}"]


def _limits(limits: Limits) -> list[str]:
    """Each limit that was measured, then the others together where they have one reason."""
    rows, missing = [], defaultdict(list)
    for field, name in LIMITS.items():
        rate = getattr(limits, f"{field}_bytes_per_second")
        if rate is None:
            missing[limits.unmeasured.get(field, "no reason given")].append(name)
        else:
            depth = field == "disk_direct" and limits.disk_depth is not None
            rows.append((name, format_rate(rate), f"at depth {limits.disk_depth}" if depth else ""))
    unmeasured = [f"  not measured: {'; '.join(names)}: {escape(reason)}" for reason, names in missing.items()]
    return ["limits", *table(rows, right=(1,)), *unmeasured]


def _regressions(result: BenchResult, style: Style) -> list[str]:
    if result.regressions is None:
        return []
    if not result.regressions:
        return [style.warning(NOTHING_JUDGED)]
    rows = [_regression(each, style) for each in result.regressions]
    regressed = sum(each.regressed for each in result.regressions)
    verdict = style.bad(count(regressed, "regression")) if regressed else style.good("no regression")
    return ["against the baseline", *table(rows), verdict]


def _regression(regression: Regression, style: Style) -> tuple[str, ...]:
    verdict = style.bad("regressed") if regression.regressed else style.good("held")
    return (
        escape(regression.contender, _NAME_LIMIT),
        regression.cache,
        f"takes {regression.ratio:.2f} times as long ({bounds(regression)})",
        f"{verdict}: {escape(regression.reason, _REASON_LIMIT)}",
    )
