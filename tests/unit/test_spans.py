"""What readers and copies of a load did when: every byte once, inside the load, on the track of who moved it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import coldctl
from coldctl.results.load import Span
from tests.loads import MIB, save_mixed
from tests.standin import StandIn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_mixed(tmp_path)
    return tmp_path


@pytest.fixture
def device() -> StandIn:
    return StandIn()


def by_track(spans: tuple[Span, ...]) -> dict[str, list[Span]]:
    tracks: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.track].append(span)
    return tracks


def moved(tracks: dict[str, list[Span]], beginning: str) -> int:
    return sum(span.bytes for track, spans in tracks.items() if track.startswith(beginning) for span in spans)


@pytest.mark.parametrize("options", [{"alloc": "arena"}, {"alloc": "per-tensor"}, {"mode": "direct"}])
def test_readers_of_a_load_into_host_memory_read_every_byte_once(folder: Path, options: Any) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(**options)
        nbytes = checkpoint.nbytes
    tracks = by_track(loaded.spans)
    assert moved(tracks, "reader") == nbytes
    assert not any(track.endswith("copy") for track in tracks)
    assert {"plan", "allocate"} - set(tracks) <= ({"allocate"} if options.get("alloc") == "per-tensor" else set())


@pytest.mark.parametrize("readers", [1, 3])
def test_as_many_readers_as_were_asked_for(folder: Path, readers: int) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(readers=readers, chunk_bytes=MIB)
    assert loaded.report.streams == readers
    tracks = {track for track in by_track(loaded.spans) if track.startswith("reader")}
    assert "reader 1" in tracks
    assert tracks <= {f"reader {number + 1}" for number in range(readers)}


def test_threads_of_one_part_after_the_other_share_their_tracks(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(first_layers=1, readers=2, chunk_bytes=MIB).wait()
        nbytes = checkpoint.nbytes
    tracks = by_track(loaded.spans)
    assert moved(tracks, "reader") == nbytes
    assert {track for track in tracks if track.startswith("reader")} <= {"reader 1", "reader 2"}


def test_no_read_is_longer_than_the_chunk(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        small, large = (checkpoint.load(chunk_bytes=nbytes).spans for nbytes in (MIB, 64 * MIB))
    reads = [span.bytes for span in small if span.track.startswith("reader")]
    assert max(reads) <= MIB
    assert max(span.bytes for span in large) > MIB


@pytest.mark.parametrize(("lanes", "tracks"), [(False, {"copy"}), (True, {"copy q", "copy k", "copy v", "copy rest"})])
def test_copies_of_a_load_to_a_device_have_a_track_for_each_lane(
    folder: Path, device: StandIn, lanes: bool, tracks: set[str]
) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(device, mode="ring", lanes=lanes)
        found = by_track(loaded.spans)
        nbytes = checkpoint.nbytes
    assert {track for track in found if track.startswith("copy")} == tracks
    assert moved(found, "copy") == moved(found, "reader") == nbytes


def test_plain_copies_have_their_own_track(folder: Path, device: StandIn) -> None:
    with coldctl.open(folder) as checkpoint:
        found = by_track(checkpoint.load(device, mode="per-tensor").spans)
        nbytes = checkpoint.nbytes
    assert moved(found, "plain copy") == nbytes


def test_spans_lie_inside_the_load_and_their_union_is_the_stage(folder: Path) -> None:
    with coldctl.open(folder) as checkpoint:
        loaded = checkpoint.load(readers=1, chunk_bytes=MIB)
    report = loaded.report
    reads = [span for span in loaded.spans if span.track == "reader 1"]
    assert all(span.start_seconds >= 0 and span.start_seconds + span.seconds <= report.seconds for span in loaded.spans)
    assert [span.start_seconds for span in reads] == sorted(span.start_seconds for span in reads)
    stage = next(each for each in report.stages if each.name == "read")
    assert sum(span.seconds for span in reads) == pytest.approx(stage.seconds)
    assert {span.name for span in reads} <= set(loaded)
