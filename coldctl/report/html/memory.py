"""The anonymous memory that each way to load took on the host."""

from __future__ import annotations

from coldctl.report.html.chart import Row, bar, chart, legend, patch
from coldctl.report.html.facts import name_of, peers
from coldctl.report.html.markup import NOTHING, Safe, join
from coldctl.report.html.scale import Scale, linear
from coldctl.report.html.section import section
from coldctl.report.runs import peak_of
from coldctl.report.text.bench_phrases import before_load
from coldctl.results.bench import BenchResult, HostMemory
from coldctl.units import GIB, format_size


def memory_section(result: BenchResult) -> Safe:
    peaks = {contender.name: peak_of(result, contender.name) for contender in result.contenders}
    measured = {name: peak for name, peak in peaks.items() if peak}
    if not measured:
        return NOTHING
    scale = linear(peak.peak_anon_bytes / GIB for peak in measured.values())
    others = peers(result)
    rows = [_row(name, measured[name], scale, others) for name in measured]
    return section(
        "Anonymous memory (page cache not counted)",
        "Of the loading process at its peak, the highest of all runs, and before the load. The peak is of all that the "
        "process did: where the load took little, it may be that of the imports. A mapping shows little here and fills "
        "the page cache instead.",
        legend((patch("prepare"), "held before the load"), (patch("fill"), "more at the peak of the process")),
        chart(rows, scale, "GiB", label="Anonymous memory at its peak"),
    )


def _row(name: str, memory: HostMemory, scale: Scale, others: set[str]) -> Row:
    before, peak = scale.at(memory.before_anon_bytes / GIB), scale.at(memory.peak_anon_bytes / GIB)
    words = f"{name}: peak {format_size(memory.peak_anon_bytes)}, {before_load(memory)}"
    marks = join([bar(0, before, 10, 12, "prepare"), bar(before, max(peak, before), 10, 12, "fill")])
    return Row(name_of(name, others), marks, format_size(memory.peak_anon_bytes), words)
