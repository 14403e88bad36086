"""What every stage, reader and copy lane of a load did when: of one more load in each cache state, after the rounds."""

from __future__ import annotations

from coldctl.report.bench_words import STAGES
from coldctl.report.html.chart import Row, axis, grid, row_of, stretched, stroke, upright
from coldctl.report.html.facts import limit_rate, limit_words
from coldctl.report.html.markup import NOTHING, Safe, element, join
from coldctl.report.html.rates import rates
from coldctl.report.html.scale import Linear
from coldctl.report.html.section import section, sentence
from coldctl.report.html.stages import stage_table
from coldctl.report.html.tracks import CELLS, Track, tracks
from coldctl.report.runs import summary_of
from coldctl.report.text.bench_phrases import beside_rounds, outside_rounds
from coldctl.report.text.phrases import count
from coldctl.results.bench import BenchResult, Timeline
from coldctl.results.bench_runs import median_run
from coldctl.units import format_moment, format_rate, format_size

SHOWN = 4
SHOWN_TRACKS = 32
_TRACK_HEIGHT = 18


def timeline_section(result: BenchResult) -> Safe:
    if not result.timelines:
        return NOTHING
    left_out = len(result.timelines) - SHOWN
    return section(
        "Where the seconds go",
        "One more load of the leading way, watched, after the rounds, from its first step. A bar is a time in which "
        "its track was busy, and the figure the share of the load in which it was; stages overlap and need not add up."
        + (f" {count(left_out, 'more timeline')} left out here." if left_out > 0 else ""),
        *(_one(result, timeline) for timeline in result.timelines[:SHOWN]),
    )


def _one(result: BenchResult, timeline: Timeline) -> Safe:
    run = median_run(result.runs, timeline.contender, timeline.cache)
    summary = summary_of(result, timeline)
    beside = beside_rounds(timeline, summary) if summary else None
    outside = outside_rounds(timeline, summary) if summary else None
    heading = element(
        "h3",
        timeline.contender,
        " ",
        element("span", timeline.cache, class_=f"tag {timeline.cache}"),
        element("span", f" {beside or format_moment(timeline.seconds)}", class_="muted"),
    )
    mark = element("p", element("b", "▲ "), sentence(outside), class_="alarm") if outside else None
    return join([heading, mark, gantt(result, timeline), stage_table(run) if run else None])


def gantt(result: BenchResult, timeline: Timeline) -> Safe:
    """The tracks of a load above its rates, on one axis in seconds."""
    ends = [span.start_seconds + span.seconds for span in timeline.spans]
    scale = Linear(max([timeline.seconds, *ends]) or 1e-9)
    drawn = tracks(timeline.spans, scale.high)
    moments = _moments(timeline, scale)
    behind = join([grid(scale), *(upright(scale.at(seconds), f"moment {kind}") for kind, _, seconds in moments)])
    rest = len(drawn) - SHOWN_TRACKS
    entries = [(stroke(f"moment {kind}"), f"{words}: {format_moment(seconds)}") for kind, words, seconds in moments]
    return element(
        "ul",
        *(row_of(_row(track, scale), behind, _TRACK_HEIGHT) for track in drawn[:SHOWN_TRACKS]),
        element("li", f"and {count(rest, 'track')} more", class_="remark") if rest > 0 else None,
        axis(scale, "seconds"),
        rates(timeline, scale, _limit(result, timeline), behind, *entries),
        class_="chart gantt",
    )


def _row(track: Track, scale: Linear) -> Row:
    words = f"{track.name}: {count(track.spans, 'span')}, busy {format_moment(track.busy_seconds)}"
    if track.bytes and track.busy_seconds:
        words += f", {format_size(track.bytes)} ({format_rate(track.bytes / track.busy_seconds)} while busy)"
    busy = element("path", element("title", words), class_=f"busy {track.kind}", d=path(track.busy))
    share = f"{100 * track.busy_seconds / scale.high:.0f} %"
    return Row(STAGES.get(track.name, track.name), stretched(CELLS, _TRACK_HEIGHT, busy), share, words)


def path(pairs: list[tuple[int, int]]) -> str:
    """A line along the middle of the track through every pair, written with relative steps: a few bytes each."""
    place = 0
    steps: list[str] = []
    for begin, end in pairs:
        steps.append(f"m{begin - place} 0h{end - begin}" if steps else f"M{begin} 9h{end - begin}")
        place = end
    return "".join(steps)


def _moments(timeline: Timeline, scale: Linear) -> list[tuple[str, str, float]]:
    """(class, words, seconds) of the moments that were measured."""
    moments = [
        ("first", "first layers ready", timeline.first_layers_seconds),
        ("loaded", "loader returned", timeline.loaded_seconds),
    ]
    return [(kind, words, at) for kind, words, at in moments if at is not None and at <= scale.high]


def _limit(result: BenchResult, timeline: Timeline) -> tuple[str, float] | None:
    """The limit of its way to load, in words and in bytes per second."""
    summary = summary_of(result, timeline)
    name = summary.limit if summary else None
    rate = limit_rate(result.limits, name)
    return (f"limit: {limit_words(name)}, {format_rate(rate)}", rate) if name and rate else None
