"""The stages of a load to a device: when copies were under way, by one clock for all of them, and what pinning took.

The stand-in copies one way at a time, so that copies of several lanes wait for each other: their times add up to more
than went by.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import coldctl
from coldctl.results.load import Span
from tests.standin import StandIn, StandInPinned
from tests.tiny import made, write_shard

MIB = 1 << 20
COPY_BYTES_PER_SECOND = 100e6
LANES = ("copy q", "copy k", "copy v", "copy rest")
BASE_SECONDS = 0.05
"""How far the clock of the stand-in's first event may be from the load's: a thread has to wake up in between."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers of attention alone, which go to the four lanes in turn."""
    folder = tmp_path_factory.mktemp("model")
    names = [f"model.layers.{layer}.self_attn.{each}_proj.weight" for layer in range(8) for each in "qkvo"]
    write_shard(folder / "model.safetensors", {name: made("U8", MIB // 2) for name in names})
    return folder


def covered_seconds(spans: list[Span]) -> float:
    """How long any of them went on."""
    total_seconds = until_seconds = 0.0
    for span in sorted(spans, key=lambda each: each.start_seconds):
        end_seconds = span.start_seconds + span.seconds
        total_seconds += max(0.0, end_seconds - max(span.start_seconds, until_seconds))
        until_seconds = max(until_seconds, end_seconds)
    return total_seconds


def test_time_on_the_bus_is_that_in_which_any_lane_copied(model: Path) -> None:
    device = StandIn()
    device.copy_bytes_per_second = COPY_BYTES_PER_SECOND
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, mode="ring", lanes=True, chunk_bytes=MIB, ring_bytes=8 * MIB)
    report = loaded.report
    copies = [span for span in loaded.spans if span.track in LANES]
    reads = [span for span in loaded.spans if span.track.startswith("reader")]
    assert {span.track for span in copies} == set(LANES)
    assert sum(span.bytes for span in copies) == report.bytes == 32 * MIB // 2

    covered = covered_seconds(copies)
    assert covered >= report.bytes / COPY_BYTES_PER_SECOND  # each copy takes its share, and none two at a time
    assert covered < 0.75 * sum(span.seconds for span in copies)
    stage = next(stage for stage in report.stages if stage.name == "h2d")
    assert stage.seconds == pytest.approx(covered)
    assert stage.bytes == report.bytes
    assert report.copies is not None
    assert report.copies.seconds == pytest.approx(covered)
    assert report.copies.bytes_per_second == pytest.approx(report.bytes / covered)

    begin_seconds = min(span.start_seconds for span in copies)
    end_seconds = max(span.start_seconds + span.seconds for span in copies)
    assert stage.start_seconds == pytest.approx(begin_seconds)
    assert begin_seconds > min(span.start_seconds for span in reads) - BASE_SECONDS
    assert end_seconds < report.seconds + BASE_SECONDS


def test_pinning_is_a_stage_of_its_own(model: Path) -> None:
    pinned: list[int] = []

    class SlowToPin(StandIn):
        def pin(self, nbytes: int) -> StandInPinned:
            time.sleep(0.02)
            pinned.append(nbytes)
            return super().pin(nbytes)

    with coldctl.open(model) as checkpoint:
        report = checkpoint.load(SlowToPin(), mode="ring", chunk_bytes=MIB, ring_bytes=8 * MIB).report
    stages = {stage.name: stage for stage in report.stages}
    assert pinned
    assert stages["pin"].seconds >= 0.02 * len(pinned)
    assert stages["pin"].start_seconds + stages["pin"].seconds <= stages["plan"].start_seconds
