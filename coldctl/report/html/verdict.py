"""The top of the page: what was loaded, what came out, and one panel for each cache state."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from coldctl.report.html.chart import bar, drawing, upright
from coldctl.report.html.facts import limit_rate, limit_words
from coldctl.report.html.markup import Safe, element, join
from coldctl.report.html.section import CACHES, sentence, stopped
from coldctl.report.runs import cache_states, leading, peak_of_leading
from coldctl.report.text.bench_phrases import before_load, peers_lead
from coldctl.report.text.phrases import count
from coldctl.results.bench import BenchResult, CacheState, Limits, Summary
from coldctl.units import format_duration, format_moment, format_rate, format_ratio, format_size


def checkpoint_name(result: BenchResult) -> str:
    return PurePosixPath(result.path).name or result.path


def header(result: BenchResult) -> Safe:
    """The page's header: name, verdict in a sentence, panels and key figures."""
    device = result.host.device
    facts = (
        f"{format_size(result.bytes)} in {count(result.files, 'file')}",
        count(result.tensors, "tensor"),
        "into host memory" if result.device == "cpu" else f"onto {device.name if device else result.device}",
        count(result.rounds, "round"),
        f"{format_duration(result.seconds)} in all",
    )
    return element(
        "header",
        element("p", "coldctl bench", class_="eyebrow"),
        element("h1", checkpoint_name(result)),
        element("p", result.path, class_="path"),
        element("p", *(element("span", fact) for fact in facts), class_="facts"),
        _alarm(result),
        element("p", *_verdict(result), *_faster_peers(result), class_="verdict"),
        element("div", *(_panel(result, cache) for cache in cache_states(result)), class_="panels"),
        element("dl", *(_tile(*tile) for tile in _tiles(result)), class_="tiles"),
    )


def _alarm(result: BenchResult) -> Safe | None:
    regressed = sum(each.regressed for each in result.regressions or ())
    if not regressed:
        return None
    return element("p", f"▲ {count(regressed, 'regression')} against the baseline", class_="alarm")


def _verdict(result: BenchResult) -> list[str]:
    """Of coldctl's own ways, in one sentence; the panels give the reasons for each cache state, where there are any."""
    reason = "" if result.bests else f" {sentence(result.best_reason)}"
    if result.best is not None:
        return ["coldctl's best way to load here is ", element("b", result.best), f".{reason}"]
    if any(best.contender for best in result.bests):
        return ["None of coldctl's ways is the best in every cache state."]
    return [f"None of coldctl's ways can be named the best.{reason}"]


def _faster_peers(result: BenchResult) -> list[str]:
    """A sentence for each of those of which even the bounds say so."""
    return [
        f" {CACHES[each.cache]} the peer {each.peer} was faster than {each.contender}: {lead}."
        for each in result.comparisons
        if (lead := peers_lead(each))
    ]


def _panel(result: BenchResult, cache: CacheState) -> Safe:
    best = next((best for best in result.bests if best.cache == cache), None)
    summary = leading(result, cache)
    label = "coldctl's best" if best and best.contender else "No best way named; coldctl's lowest median"
    bound = summary.bound if summary else None
    return element(
        "section",
        element("h2", CACHES[cache]),
        *([] if summary is None else [element("p", label, class_="label"), *_summary(summary, result.limits)]),
        element("p", sentence(best.reason)) if best else None,
        element("p", element("b", "Bound: "), stopped(bound), class_="bound") if bound else None,
        class_=f"panel {cache}",
    )


def _summary(summary: Summary, limits: Limits) -> list[Safe]:
    seconds, rate = summary.median_seconds, summary.bytes_per_second
    figures = [
        element("span", format_moment(seconds), class_="big") if seconds is not None else None,
        element("span", format_rate(rate)) if rate is not None else None,
    ]
    return [
        element("p", summary.contender, class_="winner"),
        element("p", *figures, class_="figures"),
        *([] if summary.limit_share is None else _share(summary.limit_share, summary.limit or "limit", limits)),
    ]


def _share(share: float, limit: str, limits: Limits) -> list[Safe]:
    high = max(share, 1)
    words = f"{format_ratio(share)} of its limit"
    rate = limit_rate(limits, limit)
    told = f"{words} ({limit_words(limit)}" + (f": {format_rate(rate)})" if rate else ")")
    marks = join([bar(0, 100, 2, 6, "rail"), bar(0, 100 * share / high, 2, 6, "fill"), upright(100 / high, "grid")])
    return [drawing(10, told, marks), element("p", told, class_="share")]


def _tiles(result: BenchResult) -> list[tuple[str, str, str]]:
    """(name, figure, remark) of what is worth a number of its own, where it was measured."""
    done = [run for run in result.runs if run.error is None]
    failed = len(result.runs) - len(done)
    tiles = [("Runs", f"{len(result.runs)}", f"{failed} failed" if failed else "none failed")]
    tiles += _bytes(result)
    if result.first_layers_seconds is not None:
        tiles.append(("First layers ready", format_moment(result.first_layers_seconds), _whose(result)))
    if result.attention_ready_seconds:
        first, last = result.attention_ready_seconds[0], result.attention_ready_seconds[-1]
        layers = count(len(result.attention_ready_seconds), "layer")
        figure = f"{format_moment(first)}, {format_moment(last)}"
        tiles.append(("Attention ready", figure, f"of the first layer, of the last of {layers}, {_whose(result)}"))
    if memory := peak_of_leading(result):
        remark = f"the highest of all runs of the leading ways, {before_load(memory)} (page cache not counted)"
        tiles.append(("Anonymous memory, peak", format_size(memory.peak_anon_bytes), remark))
    return tiles


def _whose(result: BenchResult) -> str:
    """Of the leading way in the first cache state in which any loaded."""
    leaders = ((cache, leading(result, cache)) for cache in cache_states(result))
    return next((f"by {summary.contender}, {cache}" for cache, summary in leaders if summary), "after the load began")


def _bytes(result: BenchResult) -> list[tuple[str, str, str]]:
    """The sum that all runs that count have, and whose runs failed because they brought another."""
    sums = Counter(run.content_sum for run in result.runs if run.error is None and run.content_sum)
    if len(sums) != 1:
        return []
    ((content_sum, same),) = sums.items()
    brought = [run for run in result.runs if run.content_sum and run.content_sum != content_sum]
    others = Counter(run.contender for run in brought)
    told = [f"sum {content_sum} in {same:,} of {count(len(result.runs), 'run')}"]
    told += [f"others in {count(times, 'run')} of {name}" for name, times in others.items()]
    return [("Bytes", "not all the same" if others else "the same", "; ".join(told))]


def _tile(name: str, figure: str, remark: str) -> Safe:
    return element("div", element("dt", name), element("dd", figure, element("small", remark)))
