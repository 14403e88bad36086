"""The ways to load that bench compares: each with each, once where nothing can vary, and what does not exist."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import pytest

from coldctl.errors import UsageError
from coldctl.jobs.bench.contenders import contenders, task_of
from coldctl.jobs.bench.options import BenchOptions
from coldctl.results.bench import Contender

MIB = 1 << 20


def names(options: BenchOptions) -> list[str]:
    return [contender.name for contender in contenders(options)[0]]


def test_without_wishes_there_is_one_contender_with_the_loaders_defaults() -> None:
    assert contenders(BenchOptions("model", device="cpu")) == (
        [Contender("auto", "coldctl", "auto", None, None, None, None)],
        [],
    )


def test_modes_streams_chunks_and_orders_are_combined_each_with_each() -> None:
    options = BenchOptions(
        "model",
        device="cuda:0",
        modes=("ring", "direct"),
        streams=(1, 4),
        chunks_bytes=(MIB, 64 * MIB),
        orders=("layers",),
    )
    assert names(options) == [
        f"{mode}, {streams}, {chunk} MiB, layers"
        for mode in ("ring", "direct")
        for streams in ("1 stream", "4 streams")
        for chunk in (1, 64)
    ]
    assert contenders(options)[0][3] == Contender(
        "ring, 4 streams, 64 MiB, layers", "coldctl", "ring", 4, 64 * MIB, "layers", None
    )


def test_a_mode_without_streams_and_chunks_stands_there_once_for_each_order() -> None:
    options = BenchOptions(
        "model", device="cpu", modes=("map", "auto"), streams=(1, 2), chunks_bytes=(MIB,), orders=("file", "name")
    )
    assert names(options) == [
        "map, file",
        "map, name",
        "auto, 1 stream, 1 MiB, file",
        "auto, 1 stream, 1 MiB, name",
        "auto, 2 streams, 1 MiB, file",
        "auto, 2 streams, 1 MiB, name",
    ]


@pytest.mark.parametrize(
    ("device", "count", "once"),
    [
        ("cpu", 3 * 3 * 4 + 2, {"map", "per-tensor"}),
        ("cuda:1", 3 * 2 * 4 + 3, {"mapped", "per-tensor", "gds"}),
    ],
)
def test_a_sweep_takes_every_mode_with_several_streams_and_chunks(device: str, count: int, once: set[str]) -> None:
    found = names(BenchOptions("model", device=device, sweep=True))
    assert len(found) == len(set(found)) == count
    assert {name for name in found if "," not in name} == once
    assert "direct, 4 streams, 16 MiB" in found


def test_a_sweep_varies_only_what_was_left_open() -> None:
    options = BenchOptions("model", device="cpu", modes=("buffered",), chunks_bytes=(2 * MIB,), sweep=True)
    assert names(options) == [f"buffered, {streams}, 2 MiB" for streams in ("1 stream", "2 streams", "4 streams")]


@pytest.mark.parametrize(
    ("wish", "message", "hint"),
    [
        ({"modes": ("ring",)}, "no such mode on the host: 'ring'", "auto, buffered, direct, map, per-tensor"),
        ({"modes": ("map",), "device": "cuda"}, "no such mode on a GPU: 'map'", "auto, ring, direct, mapped"),
        ({"orders": ("size",)}, "no such order: 'size'", "file"),
        ({"compare": ("pickle",)}, "no such peer: 'pickle'", "safetensors, fastsafetensors, runai"),
        ({"streams": (0,)}, "with 0 streams on the host", "1 to 64 threads"),
        ({"streams": (65,)}, "with 65 streams on the host", "1 to 64 threads"),
        ({"streams": (2,), "device": "cuda:0"}, "with 2 streams on a GPU", "1, or 4"),
        ({"chunks_bytes": (MIB // 2,)}, "no chunks of 524288 bytes", "1.0 MiB to 64.0 MiB"),
        ({"chunks_bytes": (MIB + 1,)}, "no chunks of 1048577 bytes", "whole MiB"),
        ({"chunks_bytes": (65 * MIB,)}, "no chunks of 68157440 bytes", "1.0 MiB to 64.0 MiB"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(wish: dict[str, object], message: str, hint: str) -> None:
    options = BenchOptions("model", **({"device": "cpu"} | wish))  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        contenders(options)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_peers_that_are_installed_run_with_their_version_and_the_others_are_noted() -> None:
    packages = {"safetensors": "safetensors", "torch": "torch", "runai": "runai-model-streamer", "instanttensor": None}
    found, notes = contenders(BenchOptions("model", device="cpu", compare=tuple(packages)))
    installed = {distribution.name for distribution in metadata.distributions()}
    present = [peer for peer, package in packages.items() if (package or peer) in installed]
    assert [(each.name, each.kind) for each in found[1:]] == [(peer, "peer") for peer in present]
    assert found[1].version == metadata.version("safetensors")
    for peer in packages.keys() - set(present):
        assert f"{peer} is not compared: {packages[peer] or peer} is not installed" in notes
    assert len(notes) == len(packages) - len(present)


def test_what_says_nothing_to_a_mode_is_noted() -> None:
    asked = BenchOptions("model", device="cpu", modes=("map", "buffered", "per-tensor"), streams=(1, 2))
    ways, notes = contenders(asked)
    assert [way.name for way in ways] == ["map", "buffered, 1 stream", "buffered, 2 streams", "per-tensor"]
    assert notes == ["streams are not for mode map, per-tensor"]
    _, notes = contenders(replace(asked, modes=("map",), chunks_bytes=(MIB,)))
    assert notes == ["streams and chunks are not for mode map"]
    assert contenders(replace(asked, streams=()))[1] == []
    assert contenders(replace(asked, modes=("buffered",)))[1] == []


@pytest.mark.parametrize(
    ("wish", "asked"),
    [
        ({"verify": True}, "verify"),
        ({"first_layers": 1}, "first_layers"),
        ({"verify": True, "first_layers": 1}, "verify and first_layers"),
    ],
)
def test_what_peers_are_not_asked_for_is_noted_where_there_are_peers(wish: dict[str, object], asked: str) -> None:
    alone = BenchOptions("model", device="cpu", **wish)  # type: ignore[arg-type]
    assert contenders(alone)[1] == []
    assert contenders(replace(alone, compare=("safetensors",)))[1] == [
        f"only coldctl's own loads are made with {asked}, those of the peers without"
    ]
    assert contenders(BenchOptions("model", device="cpu", compare=("safetensors",)))[1] == []


def test_a_task_is_what_the_contender_stands_for() -> None:
    options = BenchOptions("model", device="cpu", verify=True, first_layers=2, compare=("safetensors",))
    own, peer = contenders(options)[0]
    task = task_of(own, options, ["a", "b"], spans=True)
    assert (task.path, task.files, task.device, task.peer, task.mode) == ("model", ("a", "b"), "cpu", None, "auto")
    assert (task.streams, task.chunk_bytes, task.order) == (None, None, None)
    assert (task.first_layers, task.verify, task.spans) == (2, True, True)
    task = task_of(peer, options, ["a", "b"], spans=True)
    assert (task.peer, task.mode, task.first_layers, task.verify, task.spans) == (
        "safetensors",
        None,
        None,
        False,
        False,
    )
