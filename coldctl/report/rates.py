"""What spans moved, as bytes per second over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coldctl.results.load import Span

_SHORTEST_SECONDS = 1e-9


def rate_over_time(spans: Sequence[Span], bins: int = 200) -> list[tuple[float, float]]:
    """(start in seconds, bytes per second) of `bins` equal bins from the first begin to the last end, and a last entry
    with rate 0 at that end. Empty where nothing was moved.

    The bytes of each span are spread evenly over it: the rates times the bins' length add up to the spans' bytes.
    """
    moving = [span for span in spans if span.bytes > 0]
    if not moving:
        return []
    begins = np.array([span.start_seconds for span in moving])
    lengths = np.maximum([span.seconds for span in moving], _SHORTEST_SECONDS)
    nbytes = np.array([span.bytes for span in moving], dtype=np.float64)
    edges = np.linspace(begins.min(), (begins + lengths).max(), bins + 1)
    moved = [float((nbytes * np.clip((edge - begins) / lengths, 0, 1)).sum()) for edge in edges]
    rates = np.diff(moved) / np.diff(edges)
    return list(zip(edges.tolist(), [*rates.tolist(), 0.0], strict=True))


def read_spans(spans: Sequence[Span]) -> list[Span]:
    """What readers did: tracks `reader n`."""
    return [span for span in spans if span.track.startswith("reader ")]


def copy_spans(spans: Sequence[Span]) -> list[Span]:
    """What was copied to the device: tracks `copy`, `copy q` and the like, and `plain copy`."""
    return [span for span in spans if span.track in ("copy", "plain copy") or span.track.startswith("copy ")]
