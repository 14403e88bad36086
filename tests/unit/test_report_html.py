"""The page of a bench result: one file that needs nothing else, with every measured figure in its place."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from coldctl.report.html.markup import NOTHING, Safe, element, join
from coldctl.report.html.page import page
from coldctl.report.html.residency import CELLS as RESIDENCY_CELLS
from coldctl.report.html.residency import band, reduce
from coldctl.report.html.scale import Linear, Ratio, around, nice_step
from coldctl.report.html.style import sheet
from coldctl.report.html.timeline import path
from coldctl.report.html.tracks import CELLS, merged, tracks
from coldctl.report.text.bench import render
from coldctl.report.text.style import PLAIN
from coldctl.results.bench import BenchResult, Best, Comparison, HostMemory, ResidencyMap
from coldctl.results.load import Span
from tests import bench_results as made
from tests.bench_full import FAILING, ODD_NAME, full_result

HOSTILE = "\x1b[2J\u202e</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\n"

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "div", "p", "span", "b", "small"),
    *("code", "h1", "h2", "h3", "ul", "li", "dl", "dt", "dd", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "line", "rect", "circle", "text"),
}

VOID = {"meta"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    content: list[Element | str] = field(default_factory=list)

    def all(self, name: str, class_: str | None = None) -> list[Element]:
        """The elements called `name` below this one, that have the class `class_` among theirs."""
        found = [self] if self.name == name and (class_ is None or class_ in self.classes) else []
        return found + [each for child in self.children for each in child.all(name, class_)]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def children(self) -> list[Element]:
        return [each for each in self.content if isinstance(each, Element)]

    @property
    def words(self) -> str:
        return "".join(each if isinstance(each, str) else each.words for each in self.content)


class Tree(HTMLParser):
    """Builds the tree, and fails where an end tag closes anything but the last element that was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {tag} {attrs}"
        new = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(new)
        if tag not in VOID:
            self.open.append(new)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(text: str) -> Element:
    tree = Tree()
    tree.feed(text)
    tree.close()
    assert tree.open == [tree.root]
    return tree.root


def everything(root: Element) -> list[Element]:
    """All elements below `root`."""
    return [each for child in root.children for each in (child, *everything(child))]


def sections(root: Element) -> dict[str, Element]:
    """The page's sections by their headings."""
    (main,) = root.all("main")
    return {section.all("h2")[0].words: section for section in main.children}


def rows(section: Element) -> list[list[str]]:
    """The cells of all tables of a section, row by row."""
    return [[cell.words for cell in row.children] for row in section.all("tr")]


@pytest.fixture(scope="module")
def full() -> Element:
    return parse(page(full_result()))


@pytest.mark.parametrize("result", [made.result(), made.gpu_result(), full_result()], ids=["host", "gpu", "full"])
def test_the_page_is_one_well_formed_document_that_refers_to_nothing(result: BenchResult) -> None:
    text = page(result)
    root = parse(text)
    every = everything(root)
    assert {each.name for each in every} <= ELEMENTS
    attributes = {name for each in every for name in each.attributes}
    assert not attributes & {"href", "src", "xlink:href", "style", "srcset", "action", "data"}
    assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?:|//|url\(|@import|@font-face|<script", text)
    assert text.startswith('<!doctype html>\n<html lang="en">')


def test_the_policy_forbids_all_but_the_style_of_the_page(full: Element) -> None:
    (policy,) = [m.attributes["content"] for m in full.all("meta") if m.attributes.get("http-equiv")]
    (style,) = full.all("style")
    digest = base64.b64encode(hashlib.sha256(style.words.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    first, second, *_ = full.all("head")[0].children
    assert first.attributes == {"charset": "utf-8"}
    assert second.attributes["http-equiv"] == "Content-Security-Policy", "before anything that it could forbid"


def hostile_result() -> BenchResult:
    """Every text of the result is HOSTILE, or begins with it."""
    base = made.gpu_result()
    name = HOSTILE + "way"
    run = made.gpu_run(name, mode=HOSTILE, reason=HOSTILE, notes=(HOSTILE,), content_sum=HOSTILE)
    summary = made.summary(name, "cold", [4.0], bound=HOSTILE, limit=HOSTILE)
    return replace(
        base,
        path=f"/{HOSTILE}",
        device=HOSTILE,
        host=made.host(
            **dict.fromkeys(
                ("cpu", "kernel", "virtual", "filesystem", "mount_point", "mount_options", "block_device"), HOSTILE
            ),
            transparent_huge_pages=HOSTILE,
            device=made.device_facts(name=HOSTILE, driver=HOSTILE, cuda=HOSTILE),
            versions={HOSTILE: HOSTILE},
        ),
        contenders=[made.contender(name, mode=HOSTILE, order=HOSTILE), made.peer(HOSTILE, HOSTILE)]
        + [made.contender(f"{HOSTILE}{n}", mode=HOSTILE, order=HOSTILE, streams=n) for n in (1, 4)],
        limits=made.limits(memcpy_bytes_per_second=None, unmeasured={"memcpy_bytes_per_second": HOSTILE}),
        runs=[run, made.failed_run(HOSTILE, error=HOSTILE)],
        summaries=[
            summary,
            made.failed_summary(HOSTILE, "cold", error=HOSTILE),
            made.failed_summary(f"{HOSTILE}1", "cold", error=HOSTILE),
            made.summary(f"{HOSTILE}4", "cold", [5.0]),
        ],
        best=name,
        best_reason=HOSTILE,
        bests=[Best("cold", name, HOSTILE + "because")],
        comparisons=[Comparison("cold", name, HOSTILE, 1.5, 1.4, 1.6)],
        timelines=[
            made.timeline(name, spans=(Span(f"reader {HOSTILE}", HOSTILE, 0.0, 1.0, 5), Span(HOSTILE, "", 1, 1, 0)))
        ],
        residency=[ResidencyMap(name, "cold", (0.0,), (1.0,))],
        regressions=[
            made.regression(HOSTILE, reason=HOSTILE),
            made.regression(HOSTILE, regressed=True, reason=HOSTILE),
        ],
        notes=[HOSTILE],
    )


def test_hostile_names_and_errors_show_as_text_everywhere() -> None:
    text = page(hostile_result())
    root = parse(text)
    assert "<script" not in text
    assert "<img" not in text
    assert not root.all("script") + root.all("img")
    assert all(character.isprintable() or character == "\n" for character in text)
    shown = r"""\x1b[2J\u202e</title><script>alert(1)</script><img src=x onerror=alert(1)>"'&\n"""
    assert root.all("h1")[0].words == "script><img src=x onerror=alert(1)>\"'&\\n", "the path's last part"
    (path_line,) = root.all("p", "path")
    assert path_line.words == f"/{shown}"
    labels = [svg.attributes.get("aria-label", "") for svg in root.all("svg")]
    assert any(shown in label for label in labels), "in attributes too"
    found = sections(root)
    assert [row for row in rows(found["What failed"]) if shown in row[-1]]
    assert any(shown in cell for row in rows(found["The machine"]) for cell in row)


def test_elements_escape_text_and_keep_markup() -> None:
    assert element("p", "<b>&", Safe("<b>&amp;</b>"), None) == "<p>&lt;b&gt;&amp;<b>&amp;</b></p>"
    assert element("a", title='"<\x07', x=1.5, y=2, open=True, lang=None, class_="c", aria_label="d") == (
        '<a title="&quot;&lt;\\x07" x="1.5" y="2" open class="c" aria-label="d"></a>'
    )
    assert join(["<", NOTHING, None], separator=" & ") == "&lt; &amp; "


def test_every_run_that_succeeded_is_one_dot_at_its_seconds() -> None:
    root = parse(page(made.result()))
    dots = [dot for chart in root.all("ul", "chart") for dot in chart.all("circle", "sample")]
    assert len(dots) == 2 * 3 * 5, "two cache states, three ways, five rounds"
    assert len([dot for dot in dots if "peer" in dot.classes]) == 2 * 5
    # Cold: 3.9 to 5.2 s. The axis ends at 5.2 × 1.02 = 5.304, and begins at a multiple of 0.5, the step of five.
    (at_five,) = [dot for dot in dots if dot.words == "round 1: 5.000 s"]
    assert at_five.attributes["cx"] == f"{100 * (5.0 - 3.5) / (5.304 - 3.5):.3f}%"
    # Warm: 0.9 to 4.6 s, so that the axis begins at 0.
    (at_one,) = {dot.attributes["cx"] for dot in dots if dot.words == "round 2: 0.900 s"}
    assert at_one == f"{100 * 0.9 / (4.6 * 1.02):.3f}%"


def test_medians_and_ranges_are_written_beside_the_dots() -> None:
    section = sections(parse(page(made.result())))["Every run"]
    labels = [svg.attributes["aria-label"] for svg in section.all("svg") if "aria-label" in svg.attributes]
    assert labels[0] == "buffered: median 4.00 s, from 3.90 s to 4.20 s"
    assert [row.all("div", "figure")[0].words for row in section.all("li", "row") if row.all("div", "figure")] == [
        *("4.00 s", "4.40 s", "5.00 s"),
        *("1.00 s", "1.00 s", "4.40 s"),
    ]


def test_a_way_of_which_no_run_succeeded_is_a_row_without_dots_and_a_reason_in_a_table() -> None:
    found = sections(parse(page(made.gpu_result())))
    row = next(row for row in found["Every run"].all("li", "row") if "runai" in row.words)
    assert row.all("div", "figure")[0].words == "1 failed"
    assert not row.all("circle")
    assert rows(found["What failed"])[1:] == [
        ["runai peer", cache, "1", "No kernel image."] for cache in ("cold", "warm")
    ]


def test_every_way_that_loaded_has_its_bound_on_the_page() -> None:
    result = full_result()
    shown = html.unescape(page(result))
    told = Counter(each.bound for each in result.summaries if each.bound)
    assert max(told.values()) > 1  # those of leading ways alone would be one for each cache state
    assert all(shown.count(bound[1:]) >= times for bound, times in told.items())


def test_a_share_over_a_hundred_per_cent_is_drawn_beyond_its_limit() -> None:
    faster = made.summary("buffered", "cold", [4.0], limit_share=1.25)
    section = sections(parse(page(made.result(summaries=[faster]))))["Shares of the limits"]
    high = 125 * 1.02
    (within,) = section.all("rect", "fill")
    (beyond,) = section.all("rect", "beyond")
    assert (within.attributes["x"], within.attributes["width"]) == ("0%", f"{100 * 100 / high:.3f}%")
    assert (beyond.attributes["x"], beyond.attributes["width"]) == (
        f"{100 * 100 / high:.3f}%",
        f"{100 * 25 / high:.3f}%",
    )
    (line,) = section.all("line", "limit")
    assert line.attributes["x1"] == f"{100 * 100 / high:.3f}%"
    assert section.all("div", "figure")[0].words == "2.00 GB/s 125 %"
    assert section.all("h3")[0].words == "From a cold cache, beside disk, direct: 2.50 GB/s"


def test_spans_are_merged_only_where_the_screen_cannot_tell_them_apart() -> None:
    second = 1 / CELLS
    assert merged([(0.0, 0.5), (0.25, 0.75)], 1.0) == [(0, CELLS * 3 // 4)]
    assert merged([(0.0, 10 * second), (12 * second, 20 * second)], 1.0) == [(0, 10), (12, 20)]
    assert merged([(0.1 * second, 0.2 * second), (0.6 * second, 0.7 * second)], 1.0) == [(0, 1)]
    assert merged([(1.0, 1.0)], 1.0) == [(CELLS - 1, CELLS)], "even nothing at the very end is seen"
    many = merged([(i * second / 100, i * second / 100 + second / 300) for i in range(100 * CELLS)], 1.0)
    assert many == [(0, CELLS)]


def test_the_path_of_a_track_walks_through_its_pairs() -> None:
    assert path([(0, 10), (12, 20)]) == "M0 9h10m2 0h8"


def test_tracks_stand_in_the_order_of_their_work_with_the_union_of_their_times() -> None:
    spans = [
        Span("copy v", "", 0.5, 0.1, 1),
        Span("copy q", "", 0.6, 0.1, 1),
        Span("reader 10", "", 0.2, 0.2, 7),
        Span("reader 2", "", 0.2, 0.2, 7),
        Span("reader 2", "", 0.3, 0.3, 8),
        Span("odd", "", 0.0, 1.0, 0),
        Span("verify", "", 0.9, 0.1, 0),
        Span("plan", "", 0.0, 0.1, 0),
        Span("import_torch", "", -2.0, 1.5, 0),
    ]
    found = tracks(spans, 1.0)
    assert [track.name for track in found] == ["plan", "verify", "reader 2", "reader 10", "copy v", "copy q", "odd"]
    assert [track.kind for track in found] == ["prepare", "verify", "read", "read", "copy", "copy", "prepare"]
    assert found[2].busy_seconds == pytest.approx(0.4)
    assert (found[2].spans, found[2].bytes) == (2, 15)


def test_the_rate_of_a_run_is_drawn_beside_its_limit() -> None:
    section = sections(parse(page(made.result())))["Where the seconds go"]
    cold = section.all("ul", "gantt")[0]
    (label,) = [
        svg.attributes["aria-label"] for svg in cold.all("svg") if "Rate" in svg.attributes.get("aria-label", "")
    ]
    # Two readers bring 4e9 bytes each in 3.9 s: 8e9 / 3.9 = 2.05 GB/s.
    assert label == "Rate over time. read: up to 2.05 GB/s"
    assert "limit: disk, direct, 2.50 GB/s" in cold.words


def test_a_timeline_says_how_busy_each_track_was() -> None:
    section = sections(parse(page(made.result())))["Where the seconds go"]
    figures = {
        row.all("div", "label")[0].words: row.all("div", "figure")[0].words
        for row in section.all("ul", "gantt")[0].all("li", "row")
        if row.all("div", "figure")
    }
    # 0.02 s and 3.9 s of 4 s.
    assert figures == {"headers and plan": "0 %", "reader 1": "98 %", "reader 2": "98 %"}
    (reader,) = [p for p in section.all("ul", "gantt")[0].all("path", "busy") if p.words.startswith("reader 1")]
    assert reader.words == "reader 1: 1 span, busy 3.90 s, 3.7 GiB (1.03 GB/s while busy)"
    begin = int(CELLS * 0.1 / 4.0)
    assert reader.attributes["d"] == f"M{begin} 9h{CELLS - begin}"


def test_the_moments_of_a_timeline_are_its_own_where_they_were_measured() -> None:
    run = made.run(loaded_seconds=2.0, first_layers_seconds=3.0)
    own, other = (
        sections(parse(page(made.result(runs=[run], timelines=[made.timeline(**moments)]))))["Where the seconds go"]
        for moments in (
            {"loaded_seconds": 3.5, "first_layers_seconds": 1.0},
            {"loaded_seconds": None, "first_layers_seconds": None},
        )
    )
    assert {line.attributes["x1"] for line in own.all("line", "loaded")[:-1]} == {"87.5%"}
    assert {line.attributes["x1"] for line in own.all("line", "first")[:-1]} == {"25%"}
    assert "first layers ready: 1.00 s" in own.words
    assert not other.all("line", "moment")
    assert "Stages of the median run, round 1, 4.00 s" in other.words


def test_the_stages_of_the_median_run_stand_below_its_timeline() -> None:
    section = sections(parse(page(made.result())))["Where the seconds go"]
    assert rows(section)[:5] == [
        ["stage", "begins at", "goes on for", "bytes", "rate"],
        ["import torch", "-2.00 s", "1.50 s", "–", "–"],
        ["headers and plan", "0 ms", "20 ms", "–", "–"],
        ["allocate", "20 ms", "80 ms", "7.5 GiB", "–"],
        ["read", "0.10 s", "3.90 s", "7.5 GiB", "2.05 GB/s"],
    ]


@pytest.mark.parametrize(
    ("seconds", "rounds", "beside", "mark"),
    [
        (0.67, [0.11, 0.3, 0.74], "this load 0.67 s; the rounds 0.11 s to 0.74 s", None),
        (0.9, [0.11, 0.3, 0.74], "this load 0.90 s; the rounds 0.11 s to 0.74 s", "Slower than every round"),
        (0.1, [0.11, 0.3, 0.74], "this load 0.10 s; the rounds 0.11 s to 0.74 s", "Faster than every round"),
        (0.9, [0.3], "this load 0.90 s; the one round 0.30 s", "Slower than every round"),
    ],
)
def test_a_timeline_says_how_its_load_stands_to_the_rounds(
    seconds: float, rounds: list[float], beside: str, mark: str | None
) -> None:
    result = made.result(
        runs=[made.run(seconds=each, round=number) for number, each in enumerate(rounds)],
        summaries=[made.summary("buffered", "cold", rounds), made.summary("buffered", "warm", [0.001, 99.0])],
        timelines=[made.timeline(seconds=seconds)],
    )
    section = sections(parse(page(result)))["Where the seconds go"]
    assert section.all("h3")[0].words == f"buffered cold {beside}"
    sentence = ": read it for the order of things, not for the figures."
    assert [alarm.words for alarm in section.all("p", "alarm")] == ([f"▲ {mark}{sentence}"] if mark else [])


def test_a_timeline_without_rounds_that_loaded_has_only_its_seconds() -> None:
    for summaries in ([], [made.failed_summary("buffered", "cold")]):
        result = made.result(summaries=summaries, timelines=[made.timeline(seconds=0.5)])
        section = sections(parse(page(result)))["Where the seconds go"]
        assert section.all("h3")[0].words == "buffered cold 0.50 s"
        assert not section.all("p", "alarm")


def test_no_line_crosses_the_labels_of_the_rates() -> None:
    """What comes later in a picture lies on top, and the halo of a label hides what is under it."""
    for each in sections(parse(page(full_result())))["Where the seconds go"].all("li", "rates"):
        drawn = everything(next(svg for svg in each.all("svg") if "aria-label" in svg.attributes))
        labels = [i for i, one in enumerate(drawn) if "level" in one.classes]
        lines = [i for i, one in enumerate(drawn) if one.name in ("line", "path")]
        assert min(labels) > max(lines)
    assert re.search(r"\.level \{[^}]*paint-order: stroke; stroke: var\(--page\)", sheet())


def test_timelines_beyond_the_first_are_counted() -> None:
    many = [made.timeline(cache=cache) for cache in ("cold", "warm")] * 3
    section = sections(parse(page(made.result(timelines=many))))["Where the seconds go"]
    assert len(section.all("ul", "gantt")) == 4
    assert "2 more timelines left out here." in section.words


def test_a_page_of_150_000_spans_stays_small() -> None:
    spans = tuple(
        Span(f"reader {track}", "read", i * 0.0008, 0.0004, 65536) for track in range(30) for i in range(5000)
    )
    text = page(made.result(timelines=[made.timeline(spans=spans)]))
    assert len(spans) == 150_000
    assert len(text.encode()) < 300_000


def test_a_page_full_of_gaps_that_can_be_seen_stays_below_a_megabyte() -> None:
    gaps = tuple(
        Span(f"reader {track}", "read", 2 * i / CELLS * 4 + 1e-9, 4 / CELLS - 2e-9, 65536)
        for track in range(40)
        for i in range(CELLS // 2)
    )
    text = page(replace(full_result(), timelines=[made.timeline(spans=gaps)] * 4))
    assert "and 8 tracks more" in text
    assert len(text.encode()) < 1_000_000


def test_a_sweep_is_a_map_with_its_numbers(full: Element) -> None:
    section = sections(full)["Sweep"]
    maps = section.all("table")
    assert [table.all("caption")[0].words for table in maps] == ["ring", "direct"] * 2
    cold = rows(maps[1])
    assert cold[0] == ["streams, chunk", "1 MiB", "8 MiB", "64 MiB"]
    assert [row[0] for row in cold[1:]] == ["1", "4"]
    medians = {s.contender: s.median_seconds for s in full_result().summaries if s.cache == "cold"}
    expected = made.BYTES / (medians["direct, 4 streams, 64 MiB"] or 0) / 1e9
    assert cold[2][3] == f"{expected:.2f}"
    for table in maps:
        (top,) = table.all("td", "top")
        assert top.words == max((cell.words for cell in table.all("td")[1:]), key=float)
    darkest = [cell for table in maps[:2] for cell in table.all("td", "h6")]
    assert max(float(cell.words) for table in maps[:2] for cell in table.all("td")[1:]) in [
        float(cell.words) for cell in darkest
    ]


def test_without_a_sweep_there_is_no_map() -> None:
    assert "Sweep" not in sections(parse(page(made.result())))


def test_residency_fills_each_cell_to_its_share() -> None:
    drawn = parse(band((0.0, 0.5, 1.0, 1.0), "model"))
    (filled,) = drawn.all("path", "resident")
    assert filled.attributes["d"] == "M1 16v-8h1v8zM2 16v-16h2v16z"
    assert drawn.all("svg")[0].attributes["aria-label"] == "model: 62.5 % resident"
    assert reduce([0.0, 1.0] * RESIDENCY_CELLS) == [0.5] * RESIDENCY_CELLS
    assert sum(reduce([1.0] + [0.0] * 999)) == pytest.approx(1 / 5), "a fifth of one of the 200 cells"


def test_residency_is_told_before_and_after() -> None:
    section = sections(parse(page(made.result())))["Residency before and after"]
    figures = [cell.words for cell in section.all("div", "figure")]
    assert figures == ["before 0 %after 100 %", "before 100 %after 100 %"]
    unknown = made.result(residency=[ResidencyMap("buffered", "cold", None, None)])
    assert "Residency before and after" not in sections(parse(page(unknown)))


def test_residency_that_was_sampled_says_so_with_its_widest_bound() -> None:
    """1,887,437 bytes are 1.8 MiB."""
    bounds = (0, 1_887_437, 4096, None)
    sampled = made.result(runs=[made.run(resident_bound_bytes=each) for each in bounds])
    exact = made.result(runs=[made.run(resident_bound_bytes=each) for each in (0, None)])
    told, untold = (sections(parse(page(each)))["Residency before and after"].words for each in (sampled, exact))
    assert "Pages were sampled: what was in memory before a run is known within 1.8 MiB." in told
    assert "sampled" not in untold


def test_a_long_chart_and_many_maps_of_residency_are_folded() -> None:
    names = [f"way {number}" for number in range(30)]
    found = sections(
        parse(
            page(
                made.result(
                    contenders=[made.contender(name) for name in names],
                    runs=[made.run(name) for name in names],
                    summaries=[made.summary(name, "cold", [4.0]) for name in names],
                    residency=[ResidencyMap(name, "cold", (0.0,), (1.0,)) for name in names],
                )
            )
        )
    )
    folded = found["Every run"].all("details")[0]
    assert folded.all("summary")[0].words == "6 more"
    assert len(found["Every run"].all("ul")[0].all("circle")) == 24
    assert len(folded.all("circle")) == 6
    assert found["Residency before and after"].all("summary")[0].words == "22 more"


def test_ways_without_a_limit_are_named_and_not_drawn() -> None:
    none = made.summary("direct", "cold", [4.0], limit=None, limit_share=None)
    summaries = [made.summary("buffered", "cold", [4.0]), none]
    section = sections(parse(page(made.result(summaries=summaries))))["Shares of the limits"]
    assert len(section.all("rect", "fill")) == 1
    assert "From a cold cache, and without a measured limit: direct." in section.words


def test_ways_to_which_no_limit_applies_are_told_apart_from_those_whose_limit_was_not_measured() -> None:
    changes = {"limit": None, "limit_share": None}
    section = sections(
        parse(
            page(
                made.result(
                    runs=[made.run("map", "warm"), made.run("direct", "warm")],
                    summaries=[
                        made.summary("buffered", "warm", [4.0]),
                        made.summary("map", "warm", [4.0], **changes),
                        made.summary("direct", "warm", [4.0], **changes),
                    ],
                )
            )
        )
    )["Shares of the limits"]
    assert [remark.words for remark in section.all("p", "remark")] == [
        "From a warm cache, and without a measured limit: direct.",
        "From a warm cache, no limit applies: a mapping of warm files copies nothing, and what a peer does is not "
        "known: map.",
    ]


def test_ratios_stand_on_a_logarithmic_scale_around_one() -> None:
    scale = Ratio(4.0)
    assert [scale.at(value) for value in (0.25, 0.5, 1.0, 2.0, 4.0)] == pytest.approx([0, 25, 50, 75, 100])
    section = sections(parse(page(made.result())))["Beside the peers"]
    dots = section.all("circle", "ratio")
    assert dots[1].attributes["cx"] == "50%", "as fast as the peer"
    assert [cell.words for cell in section.all("div", "figure")] == [
        "1.25 times as fast95 %: 1.20 to 1.30",
        "1.00 times as fast95 %: 0.95 to 1.10",
    ]
    labels = [cell.words for row in section.all("li", "row") for cell in row.all("div", "label")]
    assert [label for label in labels if label != "times as fast"] == ["bufferedbeside safetensors 0.6.2"] * 2
    assert section.words.count("round by round") == 1
    assert "Beside the peers" not in sections(parse(page(made.result(comparisons=[]))))


def test_scales_have_round_ticks() -> None:
    assert [nice_step(high) for high in (1.0, 5.0, 7.0, 11.0, 0.04)] == pytest.approx([0.2, 1.0, 2.0, 2.5, 0.01])
    assert [label for _, label in Linear(3.3).ticks()] == ["0", "1", "2", "3"]
    assert around([1.0, 5.0]).low == 0
    assert around([4.0, 5.0]).low == 4.0
    for step in (nice_step(high / 7) for high in range(1, 200)):
        assert f"{step:.0e}"[0] in "1225"


def test_regressions_are_told_at_the_top_and_in_their_section(full: Element) -> None:
    (header,) = full.all("header")
    assert header.all("p", "alarm")[0].words == "▲ 1 regression against the baseline"
    section = sections(full)["Against the baseline"]
    assert "▲ regressed: 14 % slower at least, and 10 % are allowed" in section.words
    assert len(section.all("circle", "bad")) == 1
    assert "Against the baseline" not in sections(parse(page(made.result())))
    fine = parse(page(made.result(regressions=[made.regression()])))
    assert not fine.all("p", "alarm")


def test_the_verdict_says_the_best_way_or_why_there_is_none() -> None:
    named = parse(page(made.result())).all("header")[0]
    assert named.all("p", "verdict")[0].words == "coldctl's best way to load here is buffered."
    cold, warm = named.all("section", "panel")
    assert "4.00 s2.00 GB/s" in cold.words
    assert "80 % of its limit (disk, direct: 2.50 GB/s)" in cold.words
    assert "The spreads do not touch.Bound: held by the disk: nothing to gain." in cold.words
    assert "1.00 s8.00 GB/s" in warm.words
    none = parse(page(made.gpu_result())).all("header")[0]
    assert none.all("p", "verdict")[0].words == "None of coldctl's ways can be named the best."
    assert "No best way named; coldctl's lowest median" in none.all("section", "panel")[0].words
    assert "One round does not tell." in none.all("section", "panel")[0].words
    apart = made.result(best=None, bests=[Best("cold", "buffered", "x"), Best("warm", None, "y")])
    words = parse(page(apart)).all("p", "verdict")[0].words
    assert words == "None of coldctl's ways is the best in every cache state."


def test_the_verdict_says_which_peers_were_faster_and_by_how_much() -> None:
    """1 / 0.8 is 1.25, 1 / 0.96 is 1.04, and 1 / 0.64 is 1.56."""
    faster = Comparison("warm", "buffered", "safetensors", 0.8, 0.64, 0.96)
    doubtful = Comparison("cold", "buffered", "safetensors", 0.8, 0.64, 1.0)
    assert parse(page(made.result(comparisons=[doubtful, faster]))).all("p", "verdict")[0].words == (
        "coldctl's best way to load here is buffered. From a warm cache the peer safetensors was faster than buffered: "
        "1.25 times as fast (95 %: 1.04 to 1.56)."
    )


def tiles(result: BenchResult) -> dict[str, tuple[str, str]]:
    """Figure and remark of each tile by its name."""
    found = {}
    for tile in parse(page(result)).all("dl")[0].children:
        name, figure = tile.children
        remark = figure.children[0].words
        found[name.words] = figure.words.removesuffix(remark), remark
    return found


def test_the_tile_of_the_bytes_counts_the_runs_that_brought_them_and_names_those_that_brought_others() -> None:
    good = [made.run("buffered", content_sum="aa", round=number) for number in range(3)]
    crashed = made.failed_run("direct")
    assert tiles(made.result(runs=good))["Bytes"] == ("the same", "sum aa in 3 of 3 runs")
    assert tiles(made.result(runs=[*good, crashed]))["Bytes"] == ("the same", "sum aa in 3 of 4 runs")
    others = [
        made.failed_run("runai", error="brought other bytes", content_sum=content_sum) for content_sum in ("bb", "cc")
    ]
    assert tiles(made.result(runs=[*good, crashed, *others]))["Bytes"] == (
        "not all the same",
        "sum aa in 3 of 6 runs; others in 2 runs of runai",
    )


def test_the_tile_of_attention_shows_the_first_and_the_last_layer_in_whatever_order_they_came() -> None:
    shown = tiles(made.gpu_result(attention_ready_seconds=[0.9, 0.4, 1.2, 0.6]))["Attention ready"]
    assert shown == ("0.90 s, 0.60 s", "of the first layer, of the last of 4 layers, by ring, cold")


def test_a_baseline_by_which_nothing_could_be_judged_refers_to_the_notes() -> None:
    section = sections(parse(page(made.result(regressions=[]))))["Against the baseline"]
    assert "No way could be judged against the baseline: see the notes." in section.words


def test_what_came_before_the_load_is_a_strip_of_its_own_that_ends_where_the_load_begins() -> None:
    section = sections(parse(page(made.gpu_result())))["Where the seconds go"]
    strip = next(chart for chart in section.all("ul", "chart") if chart.attributes.get("aria-label", "") != "")
    assert strip.attributes["aria-label"] == "Before the load of the median run, round 1"
    bars = {row.all("div", "label")[0].words: row.all("rect", "prepare") for row in strip.all("li", "row")}
    # From -4 s to 0: 3 s of import torch from its begin, 0.5 s of CUDA context from -1 s on.
    (imports,), (context,) = bars["import torch"], bars["CUDA context"]
    assert (imports.attributes["x"], imports.attributes["width"]) == ("0%", "75%")
    assert (context.attributes["x"], context.attributes["width"]) == ("75%", "12.5%")
    bare = made.run(stages=())
    without = sections(parse(page(made.result(runs=[bare]))))["Where the seconds go"]
    assert "Before the load" not in without.words


def test_host_memory_is_told_at_its_peak_and_before_the_load() -> None:
    shown = tiles(made.result())
    assert shown["Runs"] == ("30", "none failed")
    remark = "the highest of all runs of the leading ways, 300.0 MiB before the load (page cache not counted)"
    assert shown["Anonymous memory, peak"] == ("7.8 GiB", remark), "8e9 B and 400 MiB"
    section = sections(parse(page(made.result())))["Anonymous memory (page cache not counted)"]
    peak = (made.BYTES + 400 * made.MIB) * 1.02
    assert section.all("rect", "prepare")[1].attributes["width"] == f"{100 * 300 * made.MIB / peak:.3f}%"


def test_text_and_tile_tell_the_same_peak_of_anonymous_memory() -> None:
    """The median runs take 200 MiB, and another of the leading way 300."""
    peaks = [(4.0, 200), (4.1, 200), (5.0, 300)]
    runs = [made.run(seconds=each, host_memory=HostMemory(peak * made.MIB, made.MIB)) for each, peak in peaks]
    result = made.result(runs=runs, summaries=[made.summary("buffered", "cold", [each for each, _ in peaks])])
    figure, _ = tiles(result)["Anonymous memory, peak"]
    assert figure == "300.0 MiB"
    assert f"\n  peak {figure}, the highest of all runs of the leading ways, 1.0 MiB before" in render(result, PLAIN)


def test_device_memory_has_its_alarm_its_map_and_its_samples(full: Element) -> None:
    section = sections(full)["Device memory"]
    assert section.all("p", "alarm")[0].words == (
        "▲ Fragmented: 18 % of what torch reserved is inactive inside split blocks."
    )
    # Nine segments of 1 GiB; in the third, sixth and ninth the block at 700 MiB is inactive for 256 MiB.
    inactive = section.all("path", "inactive")[0].attributes["d"]
    edges = [int(x) for x in re.findall(r"M(\d+) ", inactive)]
    assert edges == [int((3 * k + 2 + 700 / 1024) / 9 * CELLS) for k in range(3)]
    assert len(section.all("circle", "sampled")) == 2 * 5 * 8, "PCIe, sent, was not told"
    assert "PCIe, sent" not in section.words
    calm = sections(parse(page(made.gpu_result())))["Device memory"]
    assert not calm.all("p", "alarm")
    assert "Not fragmented: 5 %" in calm.words


def test_what_was_not_measured_is_said_and_not_drawn() -> None:
    root = parse(page(made.result()))
    found = sections(root)
    assert "Device memory" not in found
    assert ["H2D, 1 stream", "not measured: the device is cpu"] in rows(found["Limits of this machine"])
    assert ["disk, direct", "2.50 GB/s, 8 reads at once"] in rows(found["Limits of this machine"])
    assert not re.search(r"\bNone\b|\bnan\b|\binf\b", root.all("body")[0].words)
    assert "First layers ready" not in root.words
    assert "first layers, s" not in root.words
    assert "P90, s" not in root.words


def test_a_result_in_which_everything_failed_has_a_page() -> None:
    failed = made.result(
        runs=[made.failed_run("buffered"), made.failed_run("buffered", "warm")],
        summaries=[made.failed_summary("buffered", "cold", 1), made.failed_summary("buffered", "warm", 1)],
        best=None,
        best_reason="no run succeeded",
        bests=[Best("cold", None, "no run succeeded"), Best("warm", None, "no run succeeded")],
        comparisons=[],
        timelines=[],
        residency=[],
    )
    root = parse(page(failed))
    assert not any(chart.all("circle") for chart in root.all("ul", "chart"))
    assert "None of coldctl's ways can be named the best." in root.words
    assert "No run succeeded." in root.all("section", "panel")[0].words
    assert "Shares of the limits" not in sections(root)


def test_the_failing_peer_and_the_odd_name_are_in_the_tables(full: Element) -> None:
    figures = rows(sections(full)["All figures"])
    assert figures[0] == [
        *("way to load", "cache", "runs", "median, s", "min, s", "max, s", "P90, s", "rate", "of limit"),
        *("loader returned, s", "CPU, s", "first layers, s"),
    ]
    assert [f"{FAILING} peer", "cold", "0 of 1", *["–"] * 9] in figures
    shown = ODD_NAME.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")
    assert [row[0] for row in figures if row[0].startswith("odd")] == [f"{shown} peer"] * 2


def scheme(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


LIGHT, DARK = (scheme(block) for block in re.findall(r":root \{(.*?)\n\s*\}", sheet(), re.DOTALL)[:2])


def luminance(colour: str) -> float:
    """WCAG 2.2: relative luminance of an sRGB colour."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_can_be_read(colours: dict[str, str]) -> None:
    for ground in ("page", "panel"):
        for text in ("ink", "muted", "cold", "warm", "bad"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for shade in range(7):
        named = re.search(rf"\.h{shade} {{ background: var\(--h{shade}\); color: var\(--([\w-]+)\)", sheet())
        assert named is not None
        assert contrast(colours[named[1]], colours[f"h{shade}"]) >= 4.5, shade
    for mark in ("own", "peer", "read", "copy", "verify", "prepare", "beyond"):
        assert contrast(colours[mark], colours["page"]) >= 3, mark


def test_both_schemes_name_the_same_colours_and_the_shades_run_one_way() -> None:
    assert LIGHT.keys() == DARK.keys()
    for colours in (LIGHT, DARK):
        steps = [contrast(colours[f"h{shade}"], colours["page"]) for shade in range(7)]
        assert all(one < other for one, other in pairwise(steps))
