"""A map of what torch's allocator holds from the driver: all segments end to end, their blocks by state."""

from __future__ import annotations

from collections.abc import Iterator

from coldctl.report.html.chart import axis, bar, drawing, legend, patch, stretched
from coldctl.report.html.markup import NOTHING, Safe, element
from coldctl.report.html.scale import Linear
from coldctl.report.html.tracks import CELLS, merged
from coldctl.report.text.phrases import count
from coldctl.results.bench import DeviceMemory
from coldctl.units import GIB, format_size

_HEIGHT = 26
_HEIGHTS = {"allocated": 26, "inactive": 17, "pending": 9}
"""In pixels, so that states differ by more than their colour."""

_STATES = {"allocated": "allocated", "inactive": "inactive, inside split blocks", "pending": "waiting to be freed"}


def segment_map(memory: DeviceMemory) -> Safe:
    total_bytes = sum(segment.size_bytes for segment in memory.segments)
    if not total_bytes:
        return NOTHING
    scale = Linear(total_bytes / GIB)
    words = f"{count(len(memory.segments), 'segment')}, {format_size(total_bytes)}"
    paths = [_path(memory, state, total_bytes) for state in _STATES]
    svg = drawing(_HEIGHT, words, bar(0, 100, 0, _HEIGHT, "rail"), stretched(CELLS, _HEIGHT, *paths))
    label = element("div", "Segments", element("small", words), class_="label")
    row = element("li", label, element("div", svg, class_="drawn"), class_="row")
    entries = [(patch(f"block {state}"), words) for state, words in _STATES.items() if _spans(memory, state)]
    return element("ul", row, axis(scale, "GiB"), element("li", legend(*entries)), class_="chart")


def _path(memory: DeviceMemory, state: str, total_bytes: int) -> Safe:
    pairs = merged(_spans(memory, state), total_bytes)
    steps = "".join(f"M{begin} {_HEIGHT}h{end - begin}v-{_HEIGHTS[state]}h-{end - begin}z" for begin, end in pairs)
    return element("path", class_=f"block {state}", d=steps)


def _spans(memory: DeviceMemory, state: str) -> list[tuple[float, float]]:
    return list(_placed(memory, state))


def _placed(memory: DeviceMemory, state: str) -> Iterator[tuple[float, float]]:
    """(begin, end) in bytes of all blocks in `state`, segment after segment."""
    place = 0
    for segment in memory.segments:
        for block in segment.blocks:
            if block.state == state:
                yield place + block.offset_bytes, place + block.offset_bytes + block.size_bytes
        place += segment.size_bytes
