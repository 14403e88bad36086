"""The trace of a benchmark: what viewers of the Trace Event Format need, and the figures of the spans behind it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from coldctl.report.bench_words import STAGES
from coldctl.report.trace import MARK, trace
from coldctl.results.bench import BenchResult
from coldctl.results.load import Span
from tests import bench_results as make

Event = dict[str, Any]


def events_of(result: BenchResult, phase: str) -> list[Event]:
    events: list[Event] = json.loads(trace(result))["traceEvents"]
    return [event for event in events if event["ph"] == phase]


def one(*spans: Span, seconds: float = 4.0, **changes: Any) -> BenchResult:
    """A result with one timeline of these spans."""
    return make.result(timelines=[make.timeline("buffered", "cold", seconds, spans=spans)], **changes)


def named(result: BenchResult, what: str) -> dict[tuple[int, int], Any]:
    """The argument of one kind of metadata, by process and thread."""
    events = [event for event in events_of(result, "M") if event["name"] == what]
    values = {(event["pid"], event["tid"]): next(iter(event["args"].values())) for event in events}
    assert len(values) == len(events)
    return values


def rows(result: BenchResult) -> dict[str, list[Event]]:
    """The complete events by the name of their thread, of a result with one timeline."""
    names = named(result, "thread_name")
    found = defaultdict(list)
    for event in events_of(result, "X"):
        found[names[event["pid"], event["tid"]]].append(event)
    return found


def area(result: BenchResult, counter: str, series: str) -> float:
    """What a counter adds up to, in its unit times seconds: each value holds until the next one."""
    events = [event for event in events_of(result, "C") if event["name"] == counter]
    assert events[-1]["args"] == {series: 0.0}
    points = [(event["ts"] / 1e6, event["args"][series]) for event in events]
    return float(sum(value * (end - begin) for (begin, value), (end, _) in pairwise(points)))


def test_the_document_says_what_it_is_near_its_beginning() -> None:
    text = trace(make.result(path="x" * 10_000))
    assert MARK in text.encode()[:100]
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"]["bytes"] == 8_000_000_000
    assert document["otherData"]["versions"]["torch"] == "2.13.0"


def test_each_timeline_is_a_process_that_says_what_load_it_is_of() -> None:
    what = "one more load, watched, after the rounds; no measured round"
    assert list(named(make.gpu_result(), "process_name").values()) == [f"ring, cold: {what}", f"ring, warm: {what}"]
    assert list(named(make.gpu_result(), "process_sort_index").values()) == [0, 1]


def test_a_process_is_labelled_with_how_its_load_stands_to_the_rounds() -> None:
    slower = make.timeline(seconds=4.5)
    known = make.result(timelines=[slower], summaries=[make.summary("buffered", "cold", [3.0, 4.0])])
    assert list(named(known, "process_labels").values()) == [
        "this load 4.50 s; the rounds 3.00 s to 4.00 s; "
        "slower than every round: read it for the order of things, not for the figures"
    ]
    assert named(make.result(timelines=[slower], summaries=[]), "process_labels") == {}


def test_stages_have_the_names_of_the_other_reports_and_tensors_keep_theirs() -> None:
    stages = [Span(name, name, number, 1.0, 0) for number, name in enumerate(STAGES)]
    found = rows(one(*stages, Span("reader 1", "plan", 0.0, 1.0, 5), Span("odd", "odd", 0.0, 1.0, 0)))
    assert {name: [event["name"] for event in events] for name, events in found.items() if name != "load"} == {
        **{words: [words] for words in STAGES.values()},
        "reader 1": ["plan"],
        "odd": ["odd"],
    }


def test_every_complete_event_lies_on_a_named_thread_of_a_named_process() -> None:
    result = make.gpu_result()
    threads, processes = named(result, "thread_name"), named(result, "process_name")
    used = {(event["pid"], event["tid"]) for event in events_of(result, "X")}
    assert used == set(threads)
    assert {pid for pid, _ in used} == {pid for pid, _ in processes}
    assert set(named(result, "thread_sort_index")) == set(threads)


def test_no_number_stands_for_two_processes_or_threads() -> None:
    result = make.gpu_result()
    tids = [tid for _, tid in named(result, "thread_name")]
    pids = [pid for pid, _ in named(result, "process_name")]
    assert len({*tids, *pids}) == len(tids) + len(pids)


def test_threads_are_the_load_then_stages_as_they_began_then_readers_and_copies() -> None:
    starts = {"plain copy": 2, "copy q": 1, "touch": 5, "reader 2": 2, "copy": 0, "import_torch": -3, "reader 10": 0}
    result = one(*(Span(track, "x", start, 1.0, 1) for track, start in starts.items()))
    places, names = named(result, "thread_sort_index"), named(result, "thread_name")
    ordered = [names[key] for key in sorted(places, key=lambda key: int(places[key]))]
    assert ordered == ["load", "import torch", "touch", "reader 2", "reader 10", "plain copy", "copy q", "copy"]


def test_times_are_microseconds_and_rates_those_of_the_span() -> None:
    [event] = rows(one(Span("reader 1", "lm_head.weight", 0.25, 0.5, 1_000_000)))["reader 1"]
    assert (event["name"], event["ts"], event["dur"]) == ("lm_head.weight", 250_000.0, 500_000.0)
    assert event["args"] == {"bytes": 1_000_000, "bytes_per_second": 2_000_000.0}


def test_the_load_itself_is_a_span_of_all_bytes() -> None:
    [event] = rows(one(seconds=4.0))["load"]
    assert (event["ts"], event["dur"]) == (0.0, 4_000_000.0)
    assert event["args"] == {"bytes": 8_000_000_000, "bytes_per_second": 2e9}


def test_a_span_that_moved_nothing_has_no_figures() -> None:
    assert rows(one(Span("plan", "plan", 0.0, 0.5, 0)))["headers and plan"][0]["args"] == {}
    assert rows(one(Span("reader 1", "x", 0.0, 0.0, 7)))["reader 1"][0]["args"] == {"bytes": 7}


def test_what_came_before_the_load_shifts_all_processes_alike() -> None:
    early = make.timeline("direct", "cold", spans=(Span("import_torch", "import torch", -2.5, 2.0, 0),))
    late = make.timeline("buffered", "cold", spans=(Span("plan", "plan", 0.5, 1.0, 0),))
    events = events_of(make.result(timelines=[early, late]), "X")
    assert {event["name"]: event["ts"] for event in events if event["name"] != "load"} == {
        "import torch": 0.0,
        "headers and plan": 3_000_000.0,
    }
    assert [event["ts"] for event in events if event["name"] == "load"] == [2_500_000.0] * 2


@pytest.mark.parametrize("result", [make.result(), make.gpu_result(), make.result(timelines=[])])
def test_no_event_is_before_zero(result: BenchResult) -> None:
    timed = events_of(result, "X") + events_of(result, "C")
    assert all(event["ts"] >= 0 for event in timed)
    assert all(event["dur"] >= 0 for event in events_of(result, "X"))


def test_what_overlaps_on_a_track_gets_rows_of_its_own() -> None:
    """Perfetto draws events of a thread wrongly that overlap without nesting."""
    spans = [Span("plain copy", name, start, 1.0, 1) for name, start in (("a", 0.0), ("b", 0.5), ("c", 1.0))]
    found = rows(one(*spans))
    assert [event["name"] for event in found["plain copy"]] == ["a", "c"]
    assert [event["name"] for event in found["plain copy (2)"]] == ["b"]


def test_what_follows_at_once_stays_in_one_row_and_does_not_overlap_by_a_rounding() -> None:
    assert 0.2 + 0.1 > 0.3  # in floats, the span from 0.2 on ends after the one from 0.3 on begins
    spans = [Span("reader 1", "x", number / 10, 0.1, 1) for number in range(1000)]
    found = rows(one(*spans, Span("import_torch", "import torch", -0.3333333333, 0.1, 0)))
    assert "reader 1 (2)" not in found
    ends = [round(event["ts"] * 1000) + round(event["dur"] * 1000) for event in found["reader 1"]]
    assert all(end <= round(event["ts"] * 1000) for end, event in zip(ends, found["reader 1"][1:], strict=False))


def test_the_counters_add_up_to_what_was_read_and_copied() -> None:
    reads = [Span(f"reader {1 + n % 3}", "x", 0.1 * n, 0.37, 1_000_000 + n) for n in range(50)]
    copies = [Span("copy q", "x", 1.0, 2.0, 3_000_000), Span("plain copy", "x", 5.0, 0.5, 1_000_000)]
    result = one(*reads, *copies, Span("plan", "plan", -1.0, 0.5, 999))
    assert area(result, "read, bytes per second", "read") == pytest.approx(50 * 1_000_000 + sum(range(50)), rel=1e-6)
    assert area(result, "copied, bytes per second", "copied") == pytest.approx(4_000_000, rel=1e-6)


def test_a_span_without_duration_counts_where_it_lies() -> None:
    result = one(Span("reader 1", "x", 0.0, 1.0, 100), Span("reader 1", "y", 0.5, 0.0, 50))
    assert area(result, "read, bytes per second", "read") == pytest.approx(150, rel=1e-6)


def test_a_steady_rate_is_drawn_as_it_was() -> None:
    """Two readers side by side for 2 s with 500 bytes each: 500 bytes a second all the time."""
    result = one(Span("reader 1", "x", 1.0, 2.0, 500), Span("reader 2", "y", 1.0, 2.0, 500))
    counters = events_of(result, "C")
    assert [event["args"]["read"] for event in counters] == pytest.approx([500.0] * 200 + [0.0])
    assert [event["ts"] for event in counters] == pytest.approx([1e6 + 1e4 * number for number in range(201)])


def test_where_nothing_is_known_of_readers_there_is_no_rate() -> None:
    assert events_of(one(Span("plan", "plan", 0.0, 1.0, 0)), "C") == []


def test_samples_of_the_device_are_counters_from_the_beginning_of_the_process() -> None:
    quiet = make.device_sample(1.0, used_bytes=None, utilisation_share=None, pcie_sent_bytes_per_second=None)
    begun = Span("import_torch", "import torch", -3.0, 2.0, 0)
    samples = (make.device_sample(0.0), quiet)
    timeline = make.timeline("ring", "cold", spans=(begun,), device_samples=samples)
    result = make.gpu_result(timelines=[timeline])
    assert [(event["name"], event["ts"], event["args"]) for event in events_of(result, "C")] == [
        ("device memory", 0.0, {"used_bytes": 9 << 30}),
        ("device busy", 0.0, {"utilisation_share": 0.5, "memory_utilisation_share": 0.25}),
        ("device power", 0.0, {"power_watts": 300.0}),
        ("PCIe", 0.0, {"pcie_received_bytes_per_second": 40e9, "pcie_sent_bytes_per_second": 1e9}),
        ("device busy", 1e6, {"memory_utilisation_share": 0.25}),
        ("device power", 1e6, {"power_watts": 300.0}),
        ("PCIe", 1e6, {"pcie_received_bytes_per_second": 40e9}),
    ]


def test_names_from_files_reach_the_document_as_text_that_can_be_read_again() -> None:
    text = trace(one(Span("reader 1", "w\udcff\n\u202e\ud800", 0.0, 1.0, 1), path="/m/\udcfe"))
    assert text.isascii()
    document = json.loads(text)
    assert document["otherData"]["path"] == "/m/\\xfe"
    names = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert names == ["load", "w\\xff\n\u202e\\ud800"]
