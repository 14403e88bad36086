"""What a load can be asked for: options that do not exist or make no sense are one clear error, before any work."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

import coldctl
from coldctl.errors import InputError, UsageError
from coldctl.loader.device.protocol import Device
from coldctl.loader.load import opened
from coldctl.loader.load.opened import OpenCheckpoint
from coldctl.loader.load.options import ALLOWED, LoadOptions, Settings, settings_of
from tests.tiny import made, write_shard

MIB = 1 << 20

ANYWHERE: list[tuple[dict[str, Any], str]] = [
    ({"order": "size"}, "order is 'size', expected one of name, layers, attention-first, file"),
    ({"alloc": "heap"}, "alloc is 'heap', expected one of arena, per-tensor, map"),
    ({"framework": "jax"}, "framework is 'jax', expected one of auto, torch, numpy"),
    ({"chunk_bytes": MIB // 2}, "chunk_bytes is 524288, expected whole MiB"),
    ({"chunk_bytes": MIB + 4096}, "expected whole MiB"),
    ({"chunk_bytes": 0}, "expected whole MiB"),
    ({"readers": 0}, "readers is 0, expected a number of threads, 1 or more"),
    ({"readers": 1.5}, "readers is 1.5, expected a number of threads"),
    ({"deadline_seconds": 0}, "deadline_seconds is 0, expected a number of seconds over 0"),
    ({"deadline_seconds": float("nan")}, "deadline_seconds is nan, expected a number of seconds over 0"),
    ({"bus_threshold": 1.5}, "bus_threshold is 1.5, expected a number from 0 to 1"),
    ({"bus_threshold": -0.1}, "bus_threshold is -0.1, expected a number from 0 to 1"),
    ({"names": "model.norm.weight"}, "names is 'model.norm.weight', expected a list of names"),
    ({"tp": (0, 2, 4)}, r"tp is \(0, 2, 4\), expected \(i, n\)"),
    ({"stage": ("0", "2")}, r"stage is \('0', '2'\), expected"),
    ({"experts": (0.0, 2.0)}, r"experts is \(0.0, 2.0\), expected"),
    ({"ring_bytes": 64.0 * MIB}, "ring_bytes is 67108864.0, expected a number of bytes"),
    ({"order": []}, r"order is \[\], expected one of"),
    ({"mode": 5}, "mode is 5, expected one of"),
    ({"names": 5}, "names is 5, expected a list of names"),
    ({"names": [["a"]]}, r"names is \(\['a'\],\), expected a list of names"),
    ({"names": b"a"}, r"names is \(97,\), expected a list of names"),
    ({"deadline_seconds": "60"}, "deadline_seconds is '60', expected a number of seconds"),
    ({"deadline_seconds": True}, "deadline_seconds is True, expected a number of seconds"),
    ({"deadline_seconds": 10**400}, r"deadline_seconds is 10{76}\.\.\., expected a number of seconds"),
    ({"deadline_seconds": 10**5000}, "deadline_seconds is a value of type int, expected a number of seconds"),
    ({"ring_bytes": 1 << 80}, "ring_bytes is 1208925819614629174706176, expected a number of bytes, at most a TiB"),
    ({"chunk_bytes": 1 << 80}, "chunk_bytes is 1208925819614629174706176, expected whole MiB in bytes"),
    ({"chunk_bytes": "1MiB"}, "chunk_bytes is '1MiB', expected whole MiB in bytes"),
    ({"chunk_bytes": True}, "chunk_bytes is True, expected whole MiB in bytes"),
    ({"readers": True}, "readers is True, expected a number of threads"),
    ({"readers": 10**30}, "readers is 10{30}, expected a number of threads, 1 or more and at most 32768, or None"),
    ({"tp": "0/2"}, r"tp is '0/2', expected \(i, n\)"),
    ({"tp": (True, 2)}, r"tp is \(True, 2\), expected \(i, n\)"),
    ({"stage": 5}, r"stage is 5, expected \(i, n\)"),
    ({"verify": "no"}, "verify is 'no', expected True or False"),
    ({"exact": 1}, "exact is 1, expected True or False"),
    ({"edges_last": None}, "edges_last is None, expected True or False"),
    ({"lanes": "q"}, "lanes is 'q', expected True or False"),
    ({"transform": object()}, "transform is <object object at 0x.*>, expected an object such as coldctl.Dequantise"),
    ({"transform": coldctl.Dequantise}, "transform is <class .*>, expected an object such as coldctl.Dequantise"),
    ({"events": print}, "events is <built-in function print>, expected an object of coldctl.events.Events"),
]
ON_THE_HOST: list[tuple[dict[str, Any], str]] = [
    ({"mode": "ring"}, "mode on the host is 'ring', expected one of auto, buffered, direct"),
    ({"mode": "gds"}, "mode on the host is 'gds'"),
    ({"mode": "per-tensor"}, "mode on the host is 'per-tensor'"),
    ({"lanes": True}, "the host has none"),
    ({"alloc": "map", "mode": "direct"}, "takes no mode"),
    ({"alloc": "map", "mode": "buffered"}, "takes no mode"),
    ({"alloc": "map", "tp": (0, 2)}, "no tp, which gathers"),
    ({"alloc": "per-tensor", "mode": "direct"}, "direct reads"),
    ({"framework": "numpy", "transform": coldctl.Dequantise()}, "a transform works on torch tensors"),
]
ON_A_DEVICE: list[tuple[dict[str, Any], str]] = [
    ({"chunk_bytes": 8 * MIB, "ring_bytes": 15 * MIB}, "expected at least two chunks"),
    (
        {"mode": "buffered"},
        "mode on a device is 'buffered', expected one of auto, ring, direct, mapped, per-tensor, gds",
    ),
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
    ({"devices": "cpu"}, "devices is 'cpu', expected a list of devices"),
    ({"devices": 5}, "devices is 5, expected a list of devices"),
    ({"devices": [5]}, r"devices is \[5\], expected a list of devices"),
    ({"device": 0}, "device is 0, expected cpu, cuda or cuda:N"),
    ({"device": object()}, "device is <object object at 0x.*>, expected cpu, cuda or cuda:N"),
    ({"device": None}, "device is None, expected cpu, cuda or cuda:N"),
    ({"include": 5}, "no such option: include"),
    ({"first_layers": True}, "first_layers is True, expected a number of layers"),
    ({"devices": ["cpu", "cpu"], "split": "tp", "tp": (0, 2)}, "say two things"),
    ({"devices": []}, r"devices is \[\], expected a list of devices, one at least"),
    ({"devices": ["cpu"], "split": "rows"}, "split is 'rows', expected one of tp, stage, experts"),
    ({"split": "tp"}, "split goes with devices"),
    ({"devices": ["cpu", "cpu"], "split": "tp", "alloc": "map"}, "no tp, which gathers"),
    ({"mode": "ring"}, "mode on the host is 'ring'"),
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
        with pytest.raises(UsageError, match="order is 'size', expected one of"):
            checkpoint.stream(order="size")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="device is 5, expected cpu"):
            checkpoint.stream(5)
        with pytest.raises(InputError, match="1 of the tensors that were asked for are not there: b"):
            checkpoint.stream(names=["a", "b"])


class Unspeakable:
    """Not even its repr works."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("option", sorted(ALLOWED))
def test_no_option_takes_just_anything(tmp_path: Path, option: str) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 8)})
    asked: dict[str, Any] = {option: Unspeakable()}
    with coldctl.open(tmp_path) as checkpoint, pytest.raises(UsageError) as caught:
        checkpoint.load(**asked)
    assert caught.value.message.startswith(f"{option} is a value of type Unspeakable, expected ")


def test_every_option_of_a_load_says_what_it_may_be() -> None:
    of_load = inspect.signature(OpenCheckpoint.load).parameters.keys() - {"self", "options"}
    assert set(ALLOWED) == of_load | LoadOptions.__annotations__.keys()


def test_types_say_what_works_as_a_device() -> None:
    hints = get_type_hints(OpenCheckpoint.load, {**vars(opened), "torch": torch})
    assert set(get_args(hints["device"])) == {str, torch.device, Device}
    hints = get_type_hints(OpenCheckpoint.stream, {**vars(opened), "torch": torch})
    assert set(get_args(hints["device"])) == {str, torch.device, Device}


def test_names_may_come_from_anything_that_is_gone_through_once(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {name: made("U8", 8) for name in "abc"})
    with coldctl.open(tmp_path) as checkpoint:
        assert sorted(checkpoint.load(names=(name for name in "ab"))) == ["a", "b"]
        assert sorted(checkpoint.load(names={"c": 1})) == ["c"]
