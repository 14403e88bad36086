"""Loading onto a device, driven through the stand-in: every way gives the file's bytes, and every fault is an error
that names file, tensor and stage, after which all memory is back."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import coldctl
from coldctl.errors import (
    CancelledError,
    ChangedError,
    ColdctlError,
    CorruptedError,
    DeviceError,
    EnvironmentLacksError,
    FaultError,
    NotLoadedError,
    OutOfMemoryError,
    PinError,
    StoppedError,
    UnreadableError,
    UsageError,
)
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.device import mapped_engine
from coldctl.loader.load import choice, engine
from tests import standin
from tests.loads import footprint, save, save_mixed
from tests.standin import StandIn
from tests.tiny import Tensors, made, write_shard, write_sharded

MIB = 1 << 20
CHECKPOINTS = Path(".safetensors")
"""What the names of all mapped files of checkpoints have in them."""

SMALL_RING: dict[str, Any] = {"chunk_bytes": MIB, "ring_bytes": 2 * MIB}
QUIET: dict[str, Any] = {**SMALL_RING, "bus_threshold": 0.0}
"""A stand-in's bus is a memcpy whose rate means nothing."""

MODES = ("auto", "ring", "direct", "mapped", "per-tensor", "gds")


def layered(layers: int = 3) -> list[Tensors]:
    """Two shards of a small model: some tensors aligned, some not, one larger than a chunk, one empty."""
    first: dict[str, Any] = {"model.embed_tokens.weight": made("BF16", 700, 512), "model.norm.weight": made("F32", 33)}
    second: dict[str, Any] = {"odd": made("U8", 4097), "empty": made("F32", 0, 4), "lm_head.weight": made("BF16", 3, 5)}
    for layer in range(layers):
        shard = first if layer % 2 else second
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shard[f"model.layers.{layer}.self_attn.{name}.weight"] = made(
                "BF16", 256, 256, seed=hash((layer, name)) % 97
            )
        shard[f"model.layers.{layer}.mlp.up_proj.weight"] = made("F8_E4M3", 3002, 512, seed=layer)
    return [first, second]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_sharded(folder, layered())
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in sorted(model.glob("*.safetensors")) for name, tensor in load_file(path).items()}


class Accounted(StandIn):
    """A stand-in that knows what the process held when it was made."""

    def __init__(self, name: str = "stand-in:0") -> None:
        super().__init__(name)
        self._before = footprint(CHECKPOINTS)

    def held(self) -> dict[str, int]:
        """What of the device and of the host is not back."""
        accounts = ("allocated", "pinned", "registered", "mapped")
        held = {name: getattr(self, name).now_bytes for name in accounts}
        now = footprint(CHECKPOINTS)
        held |= {name: getattr(now, name) - getattr(self._before, name) for name in ("files", "descriptors")}
        held["threads"] = sum(thread.name.startswith("coldctl") for thread in threading.enumerate())
        held["anon"] = (now.anon_bytes - self._before.anon_bytes) // (2 * MIB)  # stacks, and what the C library keeps
        return {name: more for name, more in held.items() if more > 0}


@pytest.fixture
def device() -> Iterator[Accounted]:
    """A stand-in that has to be clean again when a test is over, and the process with it."""
    device = Accounted()
    device.watch = device.poison = True
    yield device
    device.let_go()
    expect_all_back(device)
    assert device.violations == []


def expect_all_back(device: Accounted) -> None:
    deadline = time.monotonic() + 3
    while held := device.held():
        assert time.monotonic() < deadline, held
        time.sleep(0.01)


def expect_equal(loaded: Any, expected: dict[str, torch.Tensor]) -> None:
    assert set(loaded) == set(expected)
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert torch.equal(as_bytes(loaded[name]), as_bytes(tensor)), name


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_bytes_of_the_file(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted, mode: Any
) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, mode=mode, **QUIET)
        expect_equal(loaded, expected)
        report = loaded.report
    assert report.device == "stand-in:0"
    assert report.bytes == sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    assert report.mode == mode or (mode == "auto" and report.mode in ("ring", "direct"))
    if mode == "direct":
        assert report.direct_bytes > 0.75 * report.bytes
    if mode == "gds":
        assert report.gds_bytes > 0.5 * report.bytes
    if mode != "per-tensor":
        assert report.arena_bytes >= report.bytes
    del loaded


@pytest.mark.parametrize("order", ["file", "name", "layers", "attention-first"])
def test_every_order_and_lanes_give_the_bytes_of_the_file(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted, order: Any
) -> None:
    with coldctl.open(model) as checkpoint:
        expect_equal(checkpoint.load(device, order=order, **QUIET), expected)
        expect_equal(checkpoint.load(device, order=order, lanes=True, edges_last=True, **QUIET), expected)


def test_tensors_are_views_of_one_arena_that_begins_on_a_page(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, **QUIET)
    storages = {tensor.untyped_storage().data_ptr() for tensor in loaded.values() if tensor.numel()}
    assert len(storages) == 1
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in loaded.values())
    del loaded


def test_a_tensor_that_is_kept_keeps_the_arena_and_the_last_one_frees_it(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, **QUIET)
    kept = loaded["odd"].clone(), loaded["odd"]
    del loaded
    gc.collect()
    assert device.allocated.now_bytes > 0
    assert torch.equal(*kept)
    del kept


def test_the_ring_is_gone_when_the_load_is_over(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, **QUIET)
    assert device.pinned.now_bytes == 0
    assert device.pinned.peak_bytes == 2 * MIB
    assert loaded.report.ring is not None
    assert (loaded.report.ring.slots, loaded.report.ring.slot_bytes) == (2, MIB)
    del loaded


def test_lanes_report_their_overlap_and_when_attention_was_ready(model: Path, device: Accounted) -> None:
    device.lanes_help = False
    with coldctl.open(model) as checkpoint:
        report = checkpoint.load(device, order="layers", lanes=True, **QUIET).report
    assert report.copies is not None
    assert report.copies.streams == 4
    assert report.copies.overlap_share is not None
    assert report.copies.overlap_share <= 1
    assert len(report.attention_ready_seconds) == 3
    assert list(report.attention_ready_seconds) == sorted(report.attention_ready_seconds)
    assert "lanes order the copies and add no bandwidth" in " ".join(report.notes)


def test_lanes_that_copy_at_the_same_time_overlap(tmp_path: Path, device: Accounted) -> None:
    """Copies of 20 ms on two lanes, as fast as they are read."""
    names = [f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(4) for p in "qk"]
    write_shard(tmp_path / "model.safetensors", {name: made("U8", MIB - 4096) for name in names})
    device.copies = dict.fromkeys(range(99), slowly)
    with coldctl.open(tmp_path) as checkpoint:
        copies = checkpoint.load(device, lanes=True, mode="ring", chunk_bytes=MIB, ring_bytes=8 * MIB).report.copies
    assert copies is not None
    assert copies.overlap_share is not None
    assert copies.overlap_share > 0


def test_a_mark_that_never_comes_is_an_error_at_the_deadline(
    tmp_path: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every copy is over, and the stream that is to mark the layer waits for ever."""
    tensors = {f"model.layers.0.self_attn.{p}_proj.weight": made("U8", 4096) for p in "qkvo"}
    write_shard(tmp_path / "model.safetensors", tensors)
    let_go = threading.Event()
    monkeypatch.setattr(standin.StandInStream, "wait", lambda stream, _: stream._tasks.put(let_go.wait))
    options: Any = {"lanes": True, "mode": "ring", "readers": 1, "deadline_seconds": 0.3}
    error = failure(device, tmp_path, DeviceError, **options)
    assert "did not end within" in str(error)
    last = "model.layers.0.self_attn.o_proj.weight"
    assert (error.stage, error.file, error.tensor) == ("h2d", "model.safetensors", last)
    let_go.set()
    expect_all_back(device)


def test_attention_is_not_marked_ready_before_its_last_lane(tmp_path: Path, device: Accounted) -> None:
    """k is copied last and slowly: the mark of the layer comes after it, not after the other lanes."""
    tensors = {f"model.layers.0.self_attn.{p}_proj.weight": made("U8", MIB) for p in ("q", "v", "o", "k")}
    write_shard(tmp_path / "model.safetensors", tensors)
    ends: dict[str, float] = {}

    def slowly(to: Any, source: Any) -> None:
        time.sleep(0.2)
        to.copy_(source)
        ends["k"] = time.perf_counter()

    device.copies = dict.fromkeys(range(4, 12), slowly)
    begun = time.perf_counter()
    with coldctl.open(tmp_path) as checkpoint:
        loaded = checkpoint.load(device, lanes=True, mode="ring", **SMALL_RING)
    assert ends
    assert loaded.report.attention_ready_seconds[0] >= ends["k"] - begun - 0.05
    del loaded


# What goes wrong on the way


def once_for_pages(wrong: standin.Copy) -> standin.Copy:
    """The first copy of two pages and more goes wrong, the others do not."""
    left = [wrong]

    def copy(to: Any, source: Any) -> None:
        (left.pop() if left and len(to) >= 2 * standin.PAGE_BYTES else standin.faithfully)(to, source)

    return copy


@pytest.fixture
def listed(model: Path, tmp_path: Path) -> Path:
    """The model with a manifest beside it."""
    repack(RepackOptions(str(model), str(tmp_path / "listed")), Events())
    return tmp_path / "listed"


@pytest.mark.parametrize("wrong", [standin.with_a_flipped_bit, standin.with_two_pages_swapped, standin.dropped])
@pytest.mark.parametrize("how", [{"verify": True}, {"exact": True}])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_copy_that_goes_wrong_is_found_and_named(
    model: Path, listed: Path, device: Accounted, wrong: Any, how: Any, with_manifest: bool
) -> None:
    device.copies = dict.fromkeys(range(99), once_for_pages(wrong))
    with (
        coldctl.open(listed if with_manifest else model) as checkpoint,
        pytest.raises(CorruptedError) as caught,
    ):
        checkpoint.load(device, mode="ring", **how, **SMALL_RING)
    error = caught.value
    assert error.stage == "verify"
    assert error.file is not None
    assert error.file.endswith(".safetensors")
    assert str(error.tensor) in str(error)
    del caught, error


@pytest.mark.parametrize("mode", ["ring", "direct", "mapped"])
def test_an_unverified_load_does_not_see_it(model: Path, device: Accounted, mode: Any) -> None:
    """Which is why the docstring of load promises nothing without verify."""
    device.copies = {1: standin.with_a_flipped_bit}
    with coldctl.open(model) as checkpoint:
        checkpoint.load(device, mode=mode, **SMALL_RING)


def test_a_file_that_changed_since_its_manifest_is_the_file_s_fault(listed: Path, device: Accounted) -> None:
    path = sorted(listed.glob("*.safetensors"))[0]
    with path.open("r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)[0]
        file.seek(-100, 2)
        file.write(bytes([byte ^ 1]))
    with coldctl.open(listed) as checkpoint, pytest.raises(FaultError, match=path.name) as caught:
        checkpoint.load(device, verify=True, **QUIET)
    assert caught.value.rule == "digest.mismatch"
    del caught


def test_a_slot_is_not_filled_again_before_its_copy_is_over(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted
) -> None:
    """Slow copies, few slots, poison after each copy; every source is summed when it is sent and when it is copied."""
    device.copy_bytes_per_second = 200e6
    with coldctl.open(model) as checkpoint:
        expect_equal(checkpoint.load(device, mode="ring", exact=True, **SMALL_RING), expected)
    assert device.copies_done > 4


def test_a_slot_that_is_handed_out_too_early_is_caught(
    model: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that believes every event at once sends slots whose bytes are overwritten: what is loaded is wrong, and
    verifying says so."""
    device.watch = False
    device.copy_bytes_per_second = 100e6
    monkeypatch.setattr(standin.StandInEvent, "done", lambda _: True)
    monkeypatch.setattr(standin.StandInEvent, "seconds_since", lambda _, __: 0.0)
    with coldctl.open(model) as checkpoint, pytest.raises(CorruptedError) as caught:
        checkpoint.load(device, mode="ring", verify=True, **SMALL_RING)
    assert caught.value.stage == "verify"
    monkeypatch.undo()
    time.sleep(0.5)  # the copies that nobody waited for
    device.violations.clear()
    del caught


def pausing(device: Accounted, told: threading.Event | None = None) -> standin.Copy:
    """A copy after which the device copies nothing more, until it is let go."""

    def copy(to: Any, source: Any) -> None:
        device.pause()
        if told:
            told.set()
        to.copy_(source)

    return copy


def slowly(to: Any, source: Any) -> None:
    time.sleep(0.02)
    to.copy_(source)


def failure(device: Accounted, model: Path, kind: type[ColdctlError], **options: Any) -> ColdctlError:
    """What a load that has to fail raised, held as a caller may hold it, and nothing else."""
    with coldctl.open(model) as checkpoint:
        try:
            checkpoint.load(device, **{**SMALL_RING, **options})
        except kind as error:
            return error
    pytest.fail("no error")


def expect_fault(
    device: Accounted, model: Path, kind: type[ColdctlError], stage: str, *, named: bool = True, **options: Any
) -> ColdctlError:
    error = failure(device, model, kind, **options)
    assert error.stage == stage
    assert f"stage {stage}" in str(error)
    assert bool(error.file and error.tensor) == named, (error.file, error.tensor)
    expect_all_back(device)
    return error


@pytest.mark.parametrize("mode", ["auto", "ring", "mapped", "gds"])
def test_no_device_memory_is_an_error_and_all_is_back(model: Path, device: Accounted, mode: Any) -> None:
    device.capacity_bytes = 2 * MIB
    expect_fault(device, model, OutOfMemoryError, "allocate", named=False, mode=mode)


def test_no_device_memory_for_one_tensor_names_it(model: Path, device: Accounted) -> None:
    device.allocations_left = 3
    expect_fault(device, model, OutOfMemoryError, "allocate", mode="per-tensor")


def test_no_pinned_memory_is_an_error(model: Path, device: Accounted) -> None:
    device.pin_limit_bytes = 0
    expect_fault(device, model, PinError, "pin", named=False, mode="ring")


def test_a_window_that_cannot_be_registered_is_an_error(model: Path, device: Accounted) -> None:
    device.register_fails = True
    expect_fault(device, model, PinError, "pin", mode="mapped")


def test_a_device_without_gds_says_what_it_lacks(model: Path, device: Accounted) -> None:
    device.gds_lacks = "nvidia-fs is not loaded"
    error = expect_fault(device, model, EnvironmentLacksError, "pin", named=False, mode="gds")
    assert "nvidia-fs is not loaded" in str(error)


@pytest.mark.parametrize("mode", ["ring", "mapped", "gds", "per-tensor"])
def test_a_file_that_changes_under_a_load_is_named_with_a_tensor(tmp_path: Path, device: Accounted, mode: Any) -> None:
    """One reader, and tensors that are not neighbours: it finds out at the second, or when it is done."""
    path = tmp_path / "model.safetensors"
    write_shard(path, {f"t{n}": made("U8", 64 << 10, seed=n) for n in range(5)})

    class Meddling(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            os.utime(path, ns=(1, 1))

    options: Any = {"names": ["t0", "t2", "t4"], "readers": 1, "events": Meddling(), "bus_threshold": 0.0}
    error = failure(device, tmp_path, ChangedError, mode=mode, **options)
    assert (error.file, error.stage) == (path.name, "read")
    assert error.tensor in ("t0", "t2", "t4")
    expect_all_back(device)


@pytest.mark.parametrize("mode", ["auto", "ring", "mapped", "per-tensor", "gds"])
def test_a_device_that_fails_is_an_error(model: Path, device: Accounted, mode: Any) -> None:
    def fail(to: Any, source: Any) -> None:
        device.failure = "an illegal memory access was encountered"
        to.copy_(source)

    device.copies = {1 if mode == "gds" else 5: fail}  # of which it does few
    error = expect_fault(device, model, DeviceError, "h2d", mode=mode, bus_threshold=0.0)
    assert "illegal memory access" in str(error)
    device.violations.clear()  # a real one copies nothing any more, where the stand-in goes on


@pytest.mark.parametrize("mode", ["auto", "ring", "mapped"])
def test_a_copy_that_does_not_end_is_an_error_at_its_deadline_and_its_memory_comes_back_when_it_does(
    model: Path, device: Accounted, mode: Any
) -> None:
    device.copies = {3 if mode == "auto" else 2: pausing(device)}  # the first two calibrate
    found = failure(device, model, DeviceError, mode=mode, deadline_seconds=0.3, bus_threshold=0.0)
    assert found.stage == "h2d"
    assert found.file is not None
    assert found.tensor is not None
    assert "did not end within" in str(found)
    assert device.allocated.now_bytes > 0  # a copy may still be writing there
    device.let_go()
    expect_all_back(device)


def test_a_short_pinned_memory_halves_the_ring(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted
) -> None:
    device.pin_limit_bytes = 5 * MIB
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, chunk_bytes=4 * MIB, ring_bytes=32 * MIB, bus_threshold=0.0)
        expect_equal(loaded, expected)
    ring = loaded.report.ring
    assert ring is not None
    assert (ring.slots, ring.slot_bytes, ring.halvings) == (2, 2 * MIB, 3)
    assert "halved 3 times" in " ".join(loaded.report.notes)
    del loaded


def test_how_the_ring_was_pinned_is_said(model: Path, device: Accounted) -> None:
    device.pin_how = "torch"
    with coldctl.open(model) as checkpoint:
        ring = checkpoint.load(device, **QUIET).report.ring
    assert ring is not None
    assert ring.how == "torch"


def test_a_bus_that_stays_slow_is_given_up_and_said(device: Accounted, tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"large": made("U8", 24 * MIB)})

    device.copies = dict.fromkeys(range(2, 100), slowly)  # the first two calibrate
    with coldctl.open(tmp_path) as checkpoint:
        loaded = checkpoint.load(device, **SMALL_RING)
    copies = loaded.report.copies
    assert copies is not None
    assert copies.fallback is not None
    assert "over 16 chunks, under the threshold" in copies.fallback
    assert copies.fallback in loaded.report.notes
    assert copies.bytes + copies.plain_bytes == 24 * MIB
    assert 0 < copies.plain_bytes <= (24 - 15) * MIB
    assert torch.equal(loaded["large"], load_file(tmp_path / "model.safetensors")["large"])
    del loaded


def test_a_bus_that_is_slow_now_and_then_is_not_given_up(device: Accounted, tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"large": made("U8", 24 * MIB)})
    device.copies = {number: slowly for number in range(3, 100) if number % 8}
    with coldctl.open(tmp_path) as checkpoint:
        copies = checkpoint.load(device, **{**SMALL_RING, "bus_threshold": 0.05}).report.copies
    assert copies is not None
    assert (copies.fallback, copies.plain_bytes) == (None, 0)


def test_a_stop_ends_the_load_and_gives_all_back(model: Path, device: Accounted) -> None:
    class Stopping(Events):
        def __init__(self) -> None:
            self.left_bytes = 2 * MIB

        def advance(self, nbytes: int) -> None:
            self.left_bytes -= nbytes

        def raise_if_stopped(self) -> None:
            if self.left_bytes < 0:
                raise StoppedError(15)

    with coldctl.open(model) as checkpoint, pytest.raises(StoppedError):
        checkpoint.load(device, events=Stopping(), **QUIET)


def test_a_stop_is_heard_while_a_copy_hangs(model: Path, device: Accounted) -> None:
    stop = threading.Event()

    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            if stop.is_set():
                raise StoppedError(15)

    device.copies = {2: pausing(device, stop)}
    timer = threading.Timer(1.0, device.let_go)
    timer.start()
    with coldctl.open(model) as checkpoint, pytest.raises(StoppedError):
        checkpoint.load(device, mode="ring", events=Stopping(), deadline_seconds=30, **SMALL_RING)
    timer.join()


# The first layers first


class Gated(Events):
    """Lets the first part of a load through, and holds the second at its beginning until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self._parts = 0

    def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
        self._parts += 1
        if self._parts == 2:
            self.open.wait()


def test_the_first_layers_are_there_and_the_rest_is_not(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted
) -> None:
    arrived: list[str] = []
    over = threading.Event()
    in_first = {n for n in expected if ".layers.1." not in n and ".layers.2." not in n} - {
        "lm_head.weight",
        "model.norm.weight",
    }
    with coldctl.open(model) as checkpoint:
        gate = Gated()
        loading = checkpoint.load(device, first_layers=1, events=gate, **QUIET)
        assert set(loading.loaded) == in_first
        assert not loading.done
        for name in in_first:
            assert name in loading
            assert torch.equal(as_bytes(loading[name]), as_bytes(expected[name]))
        for name in set(expected) - in_first:
            assert name not in loading
            with pytest.raises(NotLoadedError, match=name):
                loading[name]
        with pytest.raises(KeyError, match="nothing"):
            loading["nothing"]
        total = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
        first = sum(expected[name].numel() * expected[name].element_size() for name in in_first)
        assert loading.progress == (first, total)
        with pytest.raises(TimeoutError):
            loading.wait(0.05)
        loading.on_tensor(lambda name, _: arrived.append(name))
        loading.on_done(lambda _: over.set())
        assert set(arrived) == in_first
        gate.open.set()
        expect_equal(loading.wait(60), expected)
        assert over.wait(10)
        assert loading.done
        assert loading.progress == (total, total)
        assert sorted(arrived) == sorted(expected)
        assert loading.wait().report.first_layers_seconds is not None
    del loading


@pytest.mark.parametrize("mode", ["ring", "mapped", "per-tensor"])
def test_cancelling_stops_the_rest_and_gives_its_memory_back(model: Path, device: Accounted, mode: Any) -> None:
    device.copy_bytes_per_second = 20e6
    with coldctl.open(model) as checkpoint:
        loading = checkpoint.load(device, first_layers=0, mode=mode, **SMALL_RING)
        kept = loading.loaded
        loading.cancel()
    for _ in range(2):
        with pytest.raises(CancelledError):
            loading.wait()
    with pytest.raises(CancelledError):
        loading["odd"]
    assert loading.done
    assert loading.loaded == {}
    del kept, loading


def test_an_error_in_the_background_surfaces_in_wait(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        device.copies = dict.fromkeys(range(9, 99), standin.with_a_flipped_bit)
        loading = checkpoint.load(device, first_layers=1, mode="ring", verify=True, **SMALL_RING)
        for _ in range(2):
            with pytest.raises(CorruptedError):
                loading.wait(60)
        assert loading.done
        assert loading.loaded == {}
        with pytest.raises(CorruptedError):
            loading["odd"]
        expect_all_back(device)


def test_what_a_callback_raises_fails_the_load(model: Path, device: Accounted) -> None:
    def refuse(name: str, tensor: object) -> None:  # noqa: ARG001
        if ".layers.2." in name:
            raise ValueError("not that one")

    gate = Gated()
    with coldctl.open(model) as checkpoint:
        loading = checkpoint.load(device, first_layers=1, events=gate, **QUIET)
        loading.on_tensor(refuse)
        gate.open.set()
        with pytest.raises(ValueError, match="not that one"):
            loading.wait(60)


# Streams, and several devices


def test_a_stream_gives_every_tensor_in_its_order(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted
) -> None:
    with coldctl.open(model) as checkpoint:
        names = []
        for name, tensor in checkpoint.stream(device, order="name", **QUIET):
            names.append(name)
            assert torch.equal(as_bytes(tensor), as_bytes(expected[name]))
    files = {path.name: sorted(load_file(path), key=str.encode) for path in sorted(model.glob("*.safetensors"))}
    assert names == [name for file in files.values() for name in file]


def test_a_stream_that_is_left_early_gives_all_back(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        stream = checkpoint.stream(device, **QUIET)
        next(iter(stream))
        stream.close()  # type: ignore[attr-defined]


def test_each_device_reads_its_share_only(model: Path, expected: dict[str, torch.Tensor]) -> None:
    devices = [Accounted(f"stand-in:{i}") for i in range(2)]
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(devices=devices, split="tp", mode="ring", **SMALL_RING)
    for name in (n for n in expected if "q_proj" in n):
        assert torch.equal(as_bytes(torch.cat([each[name] for each in loaded])), as_bytes(expected[name]))
    for name in (n for n in expected if "o_proj" in n):
        assert torch.equal(as_bytes(torch.cat([each[name] for each in loaded], dim=1)), as_bytes(expected[name]))
    whole = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    assert all(each.report.bytes < 0.8 * whole for each in loaded)
    assert all(each.report.read_bytes < whole for each in loaded)
    assert "odd" in loaded[0].report.replicated


@pytest.mark.parametrize("split", ["stage", "experts"])
@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "mapped", "per-tensor"])
def test_no_device_reads_more_than_its_share(tmp_path: Path, split: Any, mode: Any) -> None:
    """(With gds the first chunk of a file is read twice.)"""
    save_mixed(tmp_path)
    devices = [Accounted(f"stand-in:{i}") for i in range(2)]
    with coldctl.open(tmp_path) as checkpoint:
        reports = [each.report for each in checkpoint.load(devices=devices, split=split, mode=mode, **QUIET)]
        whole_bytes = checkpoint.nbytes
    assert all(0 < report.bytes < whole_bytes for report in reports)
    assert [report.read_bytes for report in reports] == [report.bytes for report in reports]


def test_one_device_that_fails_stops_the_others(model: Path) -> None:
    devices = [Accounted(f"stand-in:{i}") for i in range(3)]
    devices[1].capacity_bytes = MIB
    devices[0].copy_bytes_per_second = devices[2].copy_bytes_per_second = 20e6
    with coldctl.open(model) as checkpoint:
        try:
            checkpoint.load(devices=devices, mode="ring", **SMALL_RING)
        except OutOfMemoryError as error:
            found = error
        else:
            pytest.fail("no error")
    assert "stand-in:1" in str(found)
    for device in devices:
        expect_all_back(device)
        assert device.violations == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alloc": "map"}, "for the host"),
        ({"framework": "numpy"}, "numpy has no tensors on a device"),
        ({"mode": "buffered"}, "mode on a device is 'buffered'"),
        ({"mode": "mapped", "lanes": True}, "one stream"),
        ({"mode": "ring", "alloc": "per-tensor"}, "fills one arena"),
        ({"chunk_bytes": 1000}, "whole MiB"),
        ({"ring_bytes": MIB}, "at least two chunks"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"bogus": 1}, "no such option: bogus"),
        ({"names": "odd"}, "names is 'odd', expected a list of names"),
        ({"tp": (0, 1, 2)}, "expected \\(i, n\\)"),
        ({"chunk_bytes": "8MiB"}, "whole MiB in bytes"),
        ({"ring_bytes": 1 << 80}, "a number of bytes"),
        ({"first_layers": 0.5}, "expected a number of layers"),
        ({"first_layers": 1, "stage": (1, 2)}, "nothing would be early"),
        ({"device": 0}, "device is 0, expected cpu"),
        ({"devices": "cpu"}, "devices is 'cpu', expected a list of devices"),
        ({"devices": ["cpu"], "first_layers": 1}, "devices goes without"),
        ({"devices": ["cpu", "cpu"], "split": "tp", "tp": (0, 2)}, "say two things"),
    ],
)
def test_options_that_make_no_sense_are_refused(model: Path, device: Accounted, options: Any, words: str) -> None:
    where: dict[str, Any] = {} if "device" in options or "devices" in options else {"device": device}
    with coldctl.open(model) as checkpoint, pytest.raises(UsageError, match=words):
        checkpoint.load(**where, **options)


def test_a_transform_gets_what_it_needs_beside_a_tensor(tmp_path: Path, device: Accounted) -> None:
    tensors = {"a.weight": made("F8_E4M3", 64, 256), "a.weight_scale": made("F32", 64, 1), "b": made("BF16", 8)}
    write_shard(tmp_path / "model.safetensors", tensors)
    plain = load_file(tmp_path / "model.safetensors")
    plain["a.weight_scale"].abs_()
    with coldctl.open(tmp_path) as checkpoint:
        raw = checkpoint.load(device, **QUIET)
        assert device.settled == 0
        loaded = checkpoint.load(device, transform=coldctl.Dequantise("F32"), **QUIET)
        assert device.settled == 1
        streamed = dict(checkpoint.stream(device, transform=coldctl.Dequantise("F32"), **QUIET))
        waited = checkpoint.load(device, first_layers=0, transform=coldctl.Dequantise("F32"), **QUIET).wait(60)
    wanted = raw["a.weight"].to(torch.float32) * raw["a.weight_scale"]
    assert device.settled > 1  # once for the whole load, and for each arrival
    for result in (loaded, streamed, waited):
        assert torch.equal(result["a.weight"].nan_to_num(7), wanted.nan_to_num(7))
        assert torch.equal(result["b"], raw["b"])


def test_windows_that_find_no_room_are_read_instead_and_said(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own ENOMEM: the process has as many mappings as it may have, or no addresses left."""

    def no_room(fd: int, offset: int, nbytes: int) -> int:  # noqa: ARG001
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mapped_engine, "map_read_only", no_room)
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, mode="mapped", **SMALL_RING)
        expect_equal(loaded, expected)
    assert "could not be mapped (ENOMEM), so they were read" in " ".join(loaded.report.notes)
    assert loaded.report.copies is not None
    assert loaded.report.copies.plain_bytes == loaded.report.bytes
    del loaded


def test_a_device_of_torch_is_taken_too(model: Path, expected: dict[str, torch.Tensor]) -> None:
    with coldctl.open(model) as checkpoint:
        expect_equal(checkpoint.load(torch.device("cpu")), expected)
        with pytest.raises(EnvironmentLacksError, match="cuda:1"):
            checkpoint.load(torch.device("cuda", 1))


def test_a_calibration_that_does_not_end_is_an_error_and_keeps_its_memory_until_it_does(
    model: Path, device: Accounted
) -> None:
    device.pause()
    error = failure(device, model, DeviceError, mode="auto", deadline_seconds=0.3)
    assert error.stage == "pin"
    assert device.pinned.now_bytes == 2 * MIB
    device.let_go()
    expect_all_back(device)


@pytest.mark.parametrize("method", ["copy", "record"])
@pytest.mark.parametrize("mode", ["ring", "mapped"])
def test_a_stream_that_takes_no_more_ends_the_load_though_more_threads_than_slots_wait(
    model: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch, method: str, mode: Any
) -> None:
    real = getattr(standin.StandInStream, method)
    calls = iter(range(10_000))

    def fail_at_last(self: Any, *arguments: Any) -> Any:
        if next(calls) >= 4:
            with device._one_at_a_time:  # no copy is half done
                device.failure = "an illegal memory access was encountered"  # and none is done any more
            raise DeviceError(device.failure)
        return real(self, *arguments)

    monkeypatch.setattr(engine, "_streams", lambda *_: (8, 8))
    monkeypatch.setattr(standin.StandInStream, method, fail_at_last)
    error = failure(device, model, DeviceError, mode=mode)
    assert (error.stage, "illegal memory access" in str(error)) == ("h2d", True)
    assert error.tensor
    monkeypatch.undo()
    expect_all_back(device)
    device.violations.clear()  # a real one that failed copies nothing any more


def test_a_callback_that_fails_ends_the_load_though_more_threads_than_slots_wait(
    model: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, tensor: object) -> None:  # noqa: ARG001
        if "layers.2" in name:
            raise ValueError("not that one")

    monkeypatch.setattr(engine, "_streams", lambda *_: (8, 8))
    device.copy_bytes_per_second = 100e6
    with coldctl.open(model) as checkpoint:
        loading = checkpoint.load(device, first_layers=1, **QUIET)
        with contextlib.suppress(ValueError):
            loading.on_tensor(refuse)
        with pytest.raises(ValueError, match="not that one"):
            loading.wait(60)


def test_a_stop_returns_soon_though_a_copy_hangs(model: Path, device: Accounted) -> None:
    stop = threading.Event()

    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            if stop.is_set():
                raise StoppedError(15)

    device.copies = {2: pausing(device, stop)}
    error = failure(device, model, StoppedError, mode="ring", events=Stopping(), deadline_seconds=3600)
    assert device.pinned.now_bytes == 2 * MIB
    device.let_go()
    expect_all_back(device)
    del error


def test_attention_marks_are_over_when_the_report_is_made(model: Path, device: Accounted) -> None:
    device.copy_bytes_per_second = 500e6
    with coldctl.open(model) as checkpoint:
        for _ in range(5):
            report = checkpoint.load(device, lanes=True, order="layers", **QUIET).report
            assert all(seconds > 0 for seconds in report.attention_ready_seconds)  # false of NaN


def test_a_bus_that_lanes_share_is_not_given_up(tmp_path: Path, device: Accounted) -> None:
    """Each copy waits for those of other lanes, and takes longer than the calibrated bus would for it alone."""
    names = [f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(10) for p in "qkvo"]
    write_shard(tmp_path / "model.safetensors", {name: made("U8", 700_000) for name in names})
    device.copy_bytes_per_second = 40e6  # 17 ms a copy, beside which what a busy machine takes is little
    with coldctl.open(tmp_path) as checkpoint:
        copies = checkpoint.load(
            device, order="file", lanes=True, chunk_bytes=MIB, ring_bytes=8 * MIB, bus_threshold=0.25
        ).report.copies
    assert copies is not None
    assert copies.fallback is None


def test_an_error_of_a_stream_holds_no_batch(model: Path, device: Accounted) -> None:
    device.copies = dict.fromkeys(range(99), once_for_pages(standin.with_a_flipped_bit))
    with coldctl.open(model) as checkpoint:
        try:
            for _ in checkpoint.stream(device, mode="ring", verify=True, **SMALL_RING):
                pass
        except CorruptedError as error:
            held = error
    expect_all_back(device)
    assert held.tensor


def test_asking_a_failed_handle_again_and_again_keeps_no_frames(model: Path, device: Accounted) -> None:
    device.copies = dict.fromkeys(range(9, 99), standin.with_a_flipped_bit)
    with coldctl.open(model) as checkpoint:
        loading = checkpoint.load(device, first_layers=1, mode="ring", verify=True, **SMALL_RING)

        def depth() -> int:
            with pytest.raises(CorruptedError) as caught:
                loading.wait(60)
            return len(caught.traceback)

        assert len({depth() for _ in range(5)}) == 1


def test_verify_and_exact_together_still_look_at_the_manifest(listed: Path, device: Accounted) -> None:
    path = sorted(listed.glob("*.safetensors"))[0]
    with path.open("r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)[0]
        file.seek(-100, 2)
        file.write(bytes([byte ^ 1]))
    with coldctl.open(listed) as checkpoint:
        checkpoint.load(device, exact=True, **QUIET)
        with pytest.raises(FaultError):
            checkpoint.load(device, verify=True, exact=True, **QUIET)


def test_a_manifest_that_cannot_be_used_is_said_before_anything_is_read(listed: Path, device: Accounted) -> None:
    (listed / "coldctl.json").write_text("{}")
    error = expect_fault(device, listed, FaultError, "verify", named=False, verify=True, mode="ring")
    assert error.file == "coldctl.json"
    assert device.copies_done == 0


def test_an_odd_number_of_slots_is_halved_to_two_at_least(model: Path, device: Accounted) -> None:
    device.pin_limit_bytes = 2 * MIB
    with coldctl.open(model) as checkpoint:
        ring = checkpoint.load(device, mode="ring", chunk_bytes=MIB, ring_bytes=3 * MIB).report.ring
    assert ring is not None
    assert (ring.slots, ring.slot_bytes) == (2, MIB)


def test_gds_lets_go_of_the_device_when_the_load_is_over(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        loaded = checkpoint.load(device, mode="gds")
    assert not [each for each in gc.get_objects() if type(each) is standin.StandInGds]
    del loaded


def test_a_direct_load_that_was_hardly_direct_says_so(tmp_path: Path, device: Accounted) -> None:
    write_shard(tmp_path / "model.safetensors", {f"odd {n}": made("U8", 4097) for n in range(50)})
    with coldctl.open(tmp_path) as checkpoint:
        report = checkpoint.load(device, mode="direct", **SMALL_RING).report
    assert report.direct_bytes == 0
    assert "only 0 % was read with O_DIRECT" in " ".join(report.notes)


def test_what_was_held_against_the_files_only_is_said(model: Path, listed: Path, device: Accounted) -> None:
    def notes(folder: Path, **options: Any) -> str:
        with coldctl.open(folder) as checkpoint:
            return " ".join(checkpoint.load(device, verify=True, **QUIET, **options).report.notes)

    assert notes(listed) == ""
    assert "20 tensors have no sums in a coldctl.json" in notes(model)
    assert "tensors have no sums in a coldctl.json" in notes(listed, tp=(0, 2))
    with coldctl.open(listed) as checkpoint:
        both = checkpoint.load(device, verify=True, exact=True, **QUIET).report.integrity
    assert both is not None
    assert both.exact
    (file, *_) = sorted(listed.glob("*.safetensors"))
    with coldctl.open(file) as checkpoint:
        alone = checkpoint.load(device, verify=True, **QUIET).report.integrity
    assert alone is not None
    assert (alone.manifest_tensors > 0, alone.file_tensors) == (True, 0)


# GPUDirect Storage, which nothing replaces


def test_a_gds_load_that_hardly_went_by_gds_says_so(tmp_path: Path, device: Accounted) -> None:
    odd = {f"odd {n}": made("U8", 4097) for n in range(600)}
    save(tmp_path / "model.safetensors", {"even": made("U8", MIB)} | odd, boundary=4096)
    with coldctl.open(tmp_path) as checkpoint:
        report = checkpoint.load(device, mode="gds").report
    assert report.gds_bytes == MIB + 4096  # the page of the first odd one follows
    assert report.copies is not None
    assert report.copies.plain_bytes == MIB + 600 * 4097 - report.gds_bytes
    assert "% was read by GDS" in " ".join(report.notes)
    assert "through host memory by plain copies" in " ".join(report.notes)


def test_a_gds_load_that_went_by_gds_has_no_such_note(model: Path, device: Accounted) -> None:
    with coldctl.open(model) as checkpoint:
        report = checkpoint.load(device, mode="gds").report
    assert report.notes == ()
    assert report.copies is not None
    assert report.gds_bytes + report.copies.plain_bytes == report.bytes


def test_gds_that_can_bring_nothing_is_refused_before_anything_is_read(tmp_path: Path, device: Accounted) -> None:
    write_shard(tmp_path / "model.safetensors", {f"odd {n}": made("U8", 4097) for n in range(50)})
    error = expect_fault(device, tmp_path, EnvironmentLacksError, "read", named=False, mode="gds")
    assert "no tensor can land in place" in str(error)
    assert f"none of these {50 * 4097} bytes" in str(error)
    with coldctl.open(tmp_path) as checkpoint:
        with pytest.raises(EnvironmentLacksError, match="no tensor can land in place"):
            next(iter(checkpoint.stream(device, mode="gds")))
        assert checkpoint.load(device, mode="gds", names=[]) == {}


@pytest.mark.parametrize("wrong", [standin.with_a_flipped_bit, standin.with_two_pages_swapped, standin.dropped])
def test_gds_that_brings_other_bytes_is_not_believed(model: Path, device: Accounted, wrong: Any) -> None:
    device.gds_copy = wrong
    error = expect_fault(device, model, CorruptedError, "read", mode="gds")
    assert f"GDS brought other bytes than {error.file} holds" in str(error)


def test_gds_that_refuses_a_file_is_not_replaced(model: Path, device: Accounted) -> None:
    device.gds_refuses = "its filesystem is none of those that GDS knows"
    error = expect_fault(device, model, EnvironmentLacksError, "read", mode="gds")
    assert "none of those that GDS knows" in str(error)
    assert str(error.file).endswith(".safetensors")


def test_a_file_that_is_replaced_before_gds_opens_it_is_an_error(
    tmp_path: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the same size and time, whose first chunk is the same, too: all that GDS gets is its path."""
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    write_shard(path, {"large": made("U8", 4 * MIB)})
    other.write_bytes(path.read_bytes()[:-100] + bytes(100))
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    really = standin.StandInGds.open

    def replaced(gds: Any, opened: str) -> Any:
        os.replace(other, path)
        return really(gds, opened)

    monkeypatch.setattr(choice, "GDS_CHUNK_BYTES", MIB)
    monkeypatch.setattr(standin.StandInGds, "open", replaced)
    error = expect_fault(device, tmp_path, ChangedError, "read", mode="gds", readers=1)
    assert (error.file, error.tensor) == ("model.safetensors", "large")


# Windows on files


def test_a_window_is_not_closed_before_its_copy_is_over_and_is_before_it_is_opened_again(
    model: Path, expected: dict[str, torch.Tensor], device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four windows of 64 KiB, a hundred slow copies: each source is summed when it is sent and when it is copied."""
    monkeypatch.setattr(choice, "WINDOW_BYTES", 64 << 10)
    device.copy_bytes_per_second = 100e6
    with coldctl.open(model) as checkpoint:
        expect_equal(checkpoint.load(device, mode="mapped", exact=True), expected)
    assert device.copies_done > 100
    assert device.registered.peak_bytes <= 4 * ((64 << 10) + standin.PAGE_BYTES)


def test_no_window_is_opened_on_what_a_file_has_lost(
    tmp_path: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    write_shard(path, {f"t{n}": made("U8", MIB, seed=n) for n in range(4)})
    monkeypatch.setattr(choice, "WINDOW_BYTES", 64 << 10)

    class Shortening(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            os.truncate(path, 2 * MIB)

    error = expect_fault(device, tmp_path, ChangedError, "read", mode="mapped", readers=1, events=Shortening())
    assert (error.file, error.tensor) == (path.name, "t1")


# Files that cannot be read


class Impatient(Events):
    """Gives up where something waits for over ten seconds, and remembers that."""

    def __init__(self) -> None:
        self.gave_up = False
        self._until_seconds = time.monotonic() + 10

    def raise_if_stopped(self) -> None:
        if time.monotonic() > self._until_seconds:
            self.gave_up = True
            raise StoppedError(15)


@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "per-tensor", "gds"])
def test_a_failed_read_is_an_error_and_all_is_back(
    model: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Eight threads and two slots: those that wait for a slot get one of those whose read has failed."""

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:  # noqa: ARG001
        time.sleep(0.2)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    events = Impatient()
    monkeypatch.setattr(os, "preadv", preadv)
    options: Any = {"mode": mode, "readers": 8, "events": events, "bus_threshold": 0.0}
    error = failure(device, model, UnreadableError, **options)
    monkeypatch.undo()
    assert (error.stage, str(error.file).endswith(".safetensors")) == ("read", True)
    assert error.tensor in coldctl.open(model).tensors
    assert "Input/output error" in str(error)
    assert not events.gave_up
    expect_all_back(device)


@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "per-tensor", "gds"])
def test_a_file_that_ends_early_is_an_error_and_all_is_back(
    tmp_path: Path, device: Accounted, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Cut after its first chunk was read."""
    path = tmp_path / "model.safetensors"
    save(path, {f"t{n}": made("U8", MIB, seed=n) for n in range(5)}, boundary=4096)
    monkeypatch.setattr(choice, "GDS_CHUNK_BYTES", MIB)

    class Shortening(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            os.truncate(path, 3 * MIB)

    options: Any = {"mode": mode, "readers": 1, "events": Shortening(), "bus_threshold": 0.0}
    error = expect_fault(device, tmp_path, ChangedError, "read", **options)
    assert error.file == path.name
    assert error.tensor in {f"t{n}" for n in range(5)}
