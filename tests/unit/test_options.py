"""What a load can be asked for: options that do not exist or make no sense are one clear error, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coldctl
from coldctl.errors import InputError, UsageError
from coldctl.loader.load.options import Settings, settings_of
from tests.tiny import made, write_shard

MIB = 1 << 20

ANYWHERE: list[tuple[dict[str, Any], str]] = [
    ({"order": "size"}, "no such order: 'size'"),
    ({"alloc": "heap"}, "no such alloc: 'heap'"),
    ({"framework": "jax"}, "no such framework: 'jax'"),
    ({"chunk_bytes": MIB // 2}, "chunk_bytes is 524288, expected whole MiB"),
    ({"chunk_bytes": MIB + 4096}, "expected whole MiB"),
    ({"chunk_bytes": 0}, "expected whole MiB"),
    ({"readers": 0}, "readers is 0, expected a number of threads, 1 or more"),
    ({"readers": 1.5}, "readers is 1.5, expected a number of threads"),
    ({"deadline_seconds": 0}, "deadline_seconds must be over 0"),
    ({"deadline_seconds": float("nan")}, "deadline_seconds must be over 0"),
    ({"bus_threshold": 1.5}, "bus_threshold from 0 to 1"),
    ({"bus_threshold": -0.1}, "bus_threshold from 0 to 1"),
    ({"names": "model.norm.weight"}, "names is one str"),
    ({"tp": (0, 2, 4)}, r"tp is \(0, 2, 4\), expected \(i, n\)"),
    ({"stage": ("0", "2")}, r"stage is \('0', '2'\), expected"),
    ({"experts": (0.0, 2.0)}, r"experts is \(0.0, 2.0\), expected"),
    ({"ring_bytes": 64.0 * MIB}, "numbers of bytes"),
]
ON_THE_HOST: list[tuple[dict[str, Any], str]] = [
    ({"mode": "ring"}, "no such mode for the host: 'ring'"),
    ({"mode": "gds"}, "no such mode for the host"),
    ({"mode": "per-tensor"}, "no such mode for the host"),
    ({"lanes": True}, "the host has none"),
    ({"alloc": "map", "mode": "direct"}, "takes no mode"),
    ({"alloc": "map", "mode": "buffered"}, "takes no mode"),
    ({"alloc": "map", "tp": (0, 2)}, "no tp, which gathers"),
    ({"alloc": "per-tensor", "mode": "direct"}, "direct reads"),
    ({"framework": "numpy", "transform": object()}, "a transform works on torch tensors"),
]
ON_A_DEVICE: list[tuple[dict[str, Any], str]] = [
    ({"chunk_bytes": 8 * MIB, "ring_bytes": 15 * MIB}, "expected at least two chunks"),
    ({"mode": "buffered"}, "no such mode for a device: 'buffered'"),
    ({"framework": "numpy"}, "numpy has no tensors on a device"),
    ({"alloc": "map"}, "is for the host"),
    ({"alloc": "per-tensor", "mode": "ring"}, 'mode "ring" fills one arena'),
    ({"alloc": "per-tensor", "mode": "gds"}, 'mode "gds" fills one arena'),
    ({"lanes": True, "mode": "mapped"}, 'mode "mapped" has one stream'),
    ({"lanes": True, "mode": "gds"}, "has one stream"),
    ({"lanes": True, "mode": "per-tensor"}, "has one stream"),
    ({"lanes": True, "alloc": "per-tensor"}, "has one stream"),
]
SENSIBLE: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({}, True),
    ({"alloc": "map"}, False),
    ({"alloc": "map", "stage": (0, 2), "experts": (1, 2)}, False),
    ({"alloc": "per-tensor", "mode": "buffered"}, False),
    ({"mode": "direct"}, False),
    ({"chunk_bytes": 256 * MIB, "readers": 3}, False),
    ({"mode": "direct", "lanes": True}, True),
    ({"alloc": "per-tensor", "mode": "per-tensor"}, True),
    ({"chunk_bytes": MIB, "ring_bytes": 2 * MIB}, True),
    ({"bus_threshold": 0, "deadline_seconds": 0.001}, True),
]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("options", "message"), ANYWHERE)
def test_what_makes_no_sense_anywhere(options: Any, message: str, on_device: bool) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(options).check(on_device=on_device)


@pytest.mark.parametrize(("options", "message"), ON_THE_HOST)
def test_what_makes_no_sense_on_the_host(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(options).check(on_device=False)


@pytest.mark.parametrize(("options", "message"), ON_A_DEVICE)
def test_what_makes_no_sense_on_a_device(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(options).check(on_device=True)


@pytest.mark.parametrize(("options", "on_device"), SENSIBLE)
def test_what_makes_sense_is_no_error(options: Any, on_device: bool) -> None:
    settings_of(options).check(on_device=on_device)


def test_an_option_that_does_not_exist_is_named_with_those_that_do() -> None:
    unknown: Any = {"colour": 1, "aloc": "map"}
    with pytest.raises(UsageError, match="no such option: aloc, colour") as caught:
        settings_of(unknown)
    assert "alloc, bus_threshold" in str(caught.value.hint)


def test_the_defaults_are_a_plain_load() -> None:
    settings = settings_of({})
    assert settings == Settings()
    assert (settings.order, settings.alloc, settings.mode, settings.names) == ("file", "arena", "auto", None)
    assert settings.slots == 16


NAMES = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.0.w1.weight",
]
BY_THE_CHECKPOINT: list[tuple[dict[str, Any], str]] = [
    ({"tp": (2, 2)}, r"tp=\(2, 2\): expected"),
    ({"tp": (0, 0)}, r"tp=\(0, 0\): expected"),
    ({"stage": (0, 2)}, "2 stages, but the checkpoint has 1 layers"),
    ({"experts": (0, 2)}, "2 shares, but model.layers.0.mlp has 1 experts"),
    ({"first_layers": -1}, "first_layers is -1, expected a number of layers"),
    ({"first_layers": "1"}, "first_layers is '1', expected a number of layers"),
    ({"first_layers": 1, "names": ["model.norm.weight"]}, "none of the first 1 layers is among these tensors"),
    ({"first_layers": 1, "edges_last": True}, "edges_last would keep the embedding back"),
    ({"first_layers": 1, "devices": ["cpu"]}, "devices goes without device and first_layers"),
    ({"device": "cuda:0", "devices": ["cpu"]}, "devices goes without device and first_layers"),
    ({"devices": "cpu"}, "devices is one str"),
    ({"device": 0}, "no such device: 0"),
    ({"devices": ["cpu", "cpu"], "split": "tp", "tp": (0, 2)}, "say two things"),
    ({"devices": []}, "devices is empty"),
    ({"devices": ["cpu"], "split": "rows"}, "no such split: 'rows'"),
    ({"split": "tp"}, "split goes with devices"),
    ({"devices": ["cpu", "cpu"], "split": "tp", "alloc": "map"}, "no tp, which gathers"),
    ({"mode": "ring"}, "no such mode for the host"),
    ({"colour": 1}, "no such option: colour"),
]


@pytest.mark.parametrize(("options", "message"), BY_THE_CHECKPOINT)
def test_a_load_refuses_what_makes_no_sense(tmp_path: Path, options: Any, message: str) -> None:
    write_shard(tmp_path / "model.safetensors", {name: made("BF16", 8, 8) for name in [*NAMES, "model.norm.weight"]})
    with coldctl.open(tmp_path) as checkpoint, pytest.raises(UsageError, match=message):
        checkpoint.load(**options)


def test_a_stream_refuses_at_once_what_makes_no_sense(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 8)})
    with coldctl.open(tmp_path) as checkpoint:
        with pytest.raises(UsageError, match="no such order"):
            checkpoint.stream(order="size")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="1 of the tensors that were asked for are not there: b"):
            checkpoint.stream(names=["a", "b"])
