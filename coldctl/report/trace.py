"""The timelines of a BenchResult in the Trace Event Format, which Perfetto (ui.perfetto.dev) and Chrome open.

A timeline is a process, named as the one more load that it is of, and none of a measured round; its load, stages,
readers and copies are threads; rates and the device's samples are counters.
All loads begin at the same moment, so that they can be compared one under another. Microseconds, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from coldctl.report.bench_words import STAGES
from coldctl.report.json import line
from coldctl.report.rates import copy_spans, rate_over_time, read_spans
from coldctl.report.runs import summary_of
from coldctl.report.text.bench_phrases import beside_rounds, outside_rounds
from coldctl.results.bench import BenchResult, Timeline
from coldctl.results.load import Span

MARK = b'"coldctl.trace/1"'
"""Stands near the beginning of every document that `trace` makes."""

_Event = dict[str, Any]

_SAMPLED = {
    "device memory": ("used_bytes",),
    "device busy": ("utilisation_share", "memory_utilisation_share"),
    "device power": ("power_watts",),
    "PCIe": ("pcie_received_bytes_per_second", "pcie_sent_bytes_per_second"),
}


def trace(result: BenchResult) -> str:
    """One JSON document of all timelines.

    Samples of the device count from the start of their process, spans from the load's. The two are aligned at the first
    span, so samples lie later than they were taken, by what Python took to start.
    """
    numbers = count(1)
    zero_seconds = min((span.start_seconds for each in result.timelines for span in each.spans), default=0.0)
    events: list[_Event] = []
    for place, timeline in enumerate(result.timelines):
        process = _Process(next(numbers), place, _nanoseconds(min(zero_seconds, 0.0)))
        rows = [("load", [Span("load", "load", 0.0, timeline.seconds, result.bytes)]), *_rows(timeline.spans)]
        name = f"{timeline.contender}, {timeline.cache}: one more load, watched, after the rounds; no measured round"
        events += process.named(name, _beside(result, timeline))
        for row, (name, spans) in enumerate(rows):
            events += process.thread(next(numbers), row, name, spans)
        events += process.rates(timeline.spans)
        events += process.samples(timeline)
    about = {"path": result.path, "device": result.device, "bytes": result.bytes, "versions": result.host.versions}
    head = {"schema": "coldctl.trace/1", "displayTimeUnit": "ms"}
    return line({**head, "otherData": about, "traceEvents": events})


class _Process:
    """The events of one timeline. Ids of processes and threads are never equal, which not all viewers would stand."""

    def __init__(self, pid: int, place: int, zero_nanoseconds: int) -> None:
        self.pid, self.place, self.zero_nanoseconds = pid, place, zero_nanoseconds

    def named(self, name: str, labels: str) -> Iterator[_Event]:
        yield self._about("process_name", self.pid, name=name)
        if labels:
            yield self._about("process_labels", self.pid, labels=labels)
        yield self._about("process_sort_index", self.pid, sort_index=self.place)

    def thread(self, tid: int, row: int, name: str, spans: Sequence[Span]) -> Iterator[_Event]:
        yield self._about("thread_name", tid, name=name)
        yield self._about("thread_sort_index", tid, sort_index=row)
        for span in spans:
            event = {"ph": "X", "name": _name(span), "cat": "load", "pid": self.pid, "tid": tid}
            duration = (_end(span) - _begin(span)) / 1000
            yield {**event, "ts": self._microseconds(_begin(span)), "dur": duration, "args": _moved(span)}

    def rates(self, spans: Sequence[Span]) -> Iterator[_Event]:
        for name, moved in (("read", read_spans(spans)), ("copied", copy_spans(spans))):
            for seconds, rate in rate_over_time(moved):
                yield self._counter(f"{name}, bytes per second", seconds, {name: rate})

    def samples(self, timeline: Timeline) -> Iterator[_Event]:
        begun_seconds = min((span.start_seconds for span in timeline.spans), default=0.0)
        for sample in timeline.device_samples:
            for name, fields in _SAMPLED.items():
                said = {field: value for field in fields if (value := getattr(sample, field)) is not None}
                if said:
                    yield self._counter(name, sample.seconds + min(begun_seconds, 0.0), said)

    def _about(self, what: str, tid: int, **args: Any) -> _Event:
        return {"ph": "M", "name": what, "pid": self.pid, "tid": tid, "args": args}

    def _counter(self, name: str, seconds: float, values: dict[str, float]) -> _Event:
        event = {"ph": "C", "name": name, "cat": "load", "pid": self.pid, "tid": self.pid}
        return {**event, "ts": self._microseconds(_nanoseconds(seconds)), "args": values}

    def _microseconds(self, nanoseconds: int) -> float:
        return (nanoseconds - self.zero_nanoseconds) / 1000


def _beside(result: BenchResult, timeline: Timeline) -> str:
    """How the load stands to the rounds before it."""
    summary = summary_of(result, timeline)
    said = (beside_rounds(timeline, summary), outside_rounds(timeline, summary)) if summary else ()
    return "; ".join(each for each in said if each)


def _name(span: Span) -> str:
    """A stage is called as in the other reports, whatever a file calls its tensors."""
    return STAGES.get(span.name, span.name) if span.track in STAGES else span.name


def _moved(span: Span) -> dict[str, float]:
    if span.bytes <= 0:
        return {}
    return {"bytes": span.bytes, **({"bytes_per_second": span.bytes / span.seconds} if span.seconds > 0 else {})}


def _rows(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    """The tracks: stages first, as they began, then readers, then copies."""
    moving = {span.track for span in (*read_spans(spans), *copy_spans(spans))}
    stages = sorted((span for span in spans if span.track not in moving), key=_begin)
    for group in (stages, read_spans(spans), copy_spans(spans)):
        for track in dict.fromkeys(span.track for span in group):
            yield from _apart(STAGES.get(track, track), [span for span in group if span.track == track])


def _apart(track: str, spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    """The spans of a track over as many rows as it takes for none to overlap: a thread does one thing at a time."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=_begin):
        free = next((row for row in rows if _end(row[-1]) <= _begin(span)), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    for number, row in enumerate(rows):
        yield track if number == 0 else f"{track} ({number + 1})", row


def _begin(span: Span) -> int:
    return _nanoseconds(span.start_seconds)


def _end(span: Span) -> int:
    return _nanoseconds(span.start_seconds + span.seconds)


def _nanoseconds(seconds: float) -> int:
    """Whole ones, so that what follows at once in seconds does not overlap by a rounding."""
    return round(seconds * 1e9)
