"""Loads that cannot be: an error names file, tensor and stage, and all memory is back while the error is still held."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import coldctl
from coldctl.errors import ChangedError, ColdctlError, InputError, OutOfMemoryError, StoppedError, UnreadableError
from coldctl.events import Events
from coldctl.loader.host.memory import PeakAnon, read_kib
from coldctl.loader.load import choice, host
from coldctl.loader.load.transform import Transform
from tests.cli.process import run_python
from tests.filesystems import in_child, loop_filesystem, memory_cgroup, tmpfs
from tests.loads import MIB, assert_given_back, footprint, save, save_sparse
from tests.standin import StandIn
from tests.tiny import made, read_shard
from tests.unit.test_source_reader import failing_preadv

PAGE = 4096
FILE = "model.safetensors"
EACH_BYTES = 2 * MIB
ROW_BYTES = 32768
TENSORS = {f"model.layers.{n}.self_attn.o_proj.weight": made("F32", 64, 8192, seed=n) for n in range(4)}
"""Four tensors of 2 MiB, one after the other from byte 4096 of the file on."""
NAMES = list(TENSORS)

everywhere = pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
into_memory = pytest.mark.parametrize("alloc", ["arena", "per-tensor"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / FILE, TENSORS, boundary=4096)
    return tmp_path


def failures(
    folder: Path,
    kind: type[BaseException],
    *,
    change: Callable[[Path], object] | None = None,
    events: Callable[[], Events] = Events,
    **options: Any,
) -> list[Any]:
    """The errors of some loads, all held, when the memory of their tensors is seen to be back.

    `change` is done to the file between its opening and the load.
    """

    def fail() -> BaseException:
        if change:
            save(folder / FILE, TENSORS, boundary=4096)
        with coldctl.open(folder) as checkpoint:
            if change:
                change(folder / FILE)
            try:
                checkpoint.load(events=events(), **options)
            except kind as error:
                return error
        raise AssertionError("the load did not fail")

    fail()
    before = footprint(folder)
    held = [fail() for _ in range(3)]
    assert_given_back(before, folder, within_bytes=2 * EACH_BYTES)
    return held


def preadv_of_a_disk_with_a_bad_page(bad: int) -> Callable[..., int]:
    """os.preadv where the page at the file's byte `bad` cannot be read, and a read that meets it ends before it."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if bad <= offset < bad + PAGE:
            raise OSError(errno.EIO, "Input/output error")
        room = bad - offset if offset < bad else len(buffers[0])
        return real(fd, [buffers[0][:room]], offset)

    return preadv


@into_memory
@pytest.mark.parametrize("options", [{}, {"mode": "buffered"}, {"order": "name"}, {"devices": ["cpu", "cpu"]}])
def test_a_failed_read_names_file_tensor_byte_and_stage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any, options: Any
) -> None:
    bad = 4096 + 3 * EACH_BYTES + 5 * PAGE
    monkeypatch.setattr(os, "preadv", preadv_of_a_disk_with_a_bad_page(bad))
    for error in failures(folder, UnreadableError, alloc=alloc, **options):
        assert (error.file, error.tensor, error.stage) == (FILE, NAMES[3], "read")
        assert error.offset_bytes == bad
        assert error.message == f"cannot read {FILE} at byte {bad}: Input/output error (stage read, tensor {NAMES[3]})"
        assert error.exit_code == 3


@into_memory
def test_a_failed_read_of_strips_names_them(folder: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any) -> None:
    """The second half of each row of 32 KiB: the bad byte is in the first half of row 5, so the next strip fails."""
    bad = 4096 + EACH_BYTES + 5 * ROW_BYTES + 100
    monkeypatch.setattr(os, "preadv", failing_preadv(bad))
    for error in failures(folder, UnreadableError, alloc=alloc, tp=(1, 2), names=NAMES[:2]):
        assert (error.file, error.tensor, error.stage) == (FILE, NAMES[1], "read")
        assert error.offset_bytes == 4096 + EACH_BYTES + 5 * ROW_BYTES + ROW_BYTES // 2


def test_a_failed_read_in_slots_names_the_tensor_that_holds_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / FILE, {f"t{n}": made("F32", 100, seed=n) for n in range(50)}, past=1)
    bad = read_shard(tmp_path / FILE)["t31"].offset + 7
    monkeypatch.setattr(os, "preadv", failing_preadv(bad))
    for error in failures(tmp_path, UnreadableError):
        assert (error.tensor, error.offset_bytes, error.stage) == ("t31", bad, "read")


class Damaged(NamedTuple):
    """`first_bad` is the first byte that cannot be read, in the middle of the third tensor; all after it is bad."""

    folder: Path
    first_bad: int


@pytest.fixture(scope="module")
def damaged() -> Iterator[Damaged]:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        path = filesystem.path / FILE
        save(path, TENSORS, boundary=4096)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        first_bad = 4096 + 2 * EACH_BYTES + 48 * PAGE
        filesystem.make_unreadable(path, first_bad)
        yield Damaged(filesystem.path, first_bad)


@pytest.mark.root
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "auto"},
        {"mode": "buffered"},
        {"mode": "direct"},
        {"alloc": "per-tensor"},
        {"alloc": "map"},
        {"tp": (0, 2)},
        {"devices": ["cpu", "cpu"], "split": "stage"},
    ],
    ids=str,
)
def test_blocks_that_cannot_be_read_are_named(damaged: Damaged, options: Any) -> None:
    for error in failures(damaged.folder, UnreadableError, **options):
        assert (error.file, error.stage, error.code) == (FILE, "read", "unreadable")
        assert "Input/output error" in error.message
        # Threads race for the two tensors that are bad, and a read may fail from its beginning on.
        assert error.tensor in NAMES[2:]
        begin = 4096 + EACH_BYTES * NAMES.index(error.tensor)
        assert begin <= error.offset_bytes < begin + EACH_BYTES


@pytest.mark.root
@pytest.mark.parametrize("mode", ["auto", "ring", "direct", "mapped", "per-tensor"])
def test_blocks_that_cannot_be_read_for_a_device_are_named(damaged: Damaged, mode: Any) -> None:
    device = StandIn()
    before = footprint(damaged.folder)
    with coldctl.open(damaged.folder) as checkpoint, pytest.raises(UnreadableError) as caught:
        checkpoint.load(device, mode=mode, bus_threshold=0.0)
    error: Any = caught.value
    assert (error.file, error.stage, error.code) == (FILE, "read", "unreadable")
    assert error.tensor in NAMES[2:]
    begin = 4096 + EACH_BYTES * NAMES.index(error.tensor)
    assert begin <= error.offset_bytes < begin + EACH_BYTES
    after = footprint(damaged.folder)
    assert (after.files, after.descriptors) == (before.files, before.descriptors)
    assert (device.allocated.now_bytes, device.pinned.now_bytes, device.registered.now_bytes) == (0, 0, 0)
    assert device.violations == []


@pytest.mark.root
@pytest.mark.parametrize("options", [{"alloc": "map"}, {"alloc": "map", "verify": True}], ids=str)
def test_a_bad_block_far_into_a_mapped_chunk_is_named(options: Any) -> None:
    """A chunk of a mapping is 64 MiB, and the kernel says of all of it only that it failed."""
    first_bad = 4096 + 20 * MIB
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        path = filesystem.path / FILE
        save_sparse(path, {"a": 40 * MIB})
        path.write_bytes(path.read_bytes())
        with path.open("rb") as file:
            os.fsync(file.fileno())
        filesystem.make_unreadable(path, first_bad)
        with coldctl.open(filesystem.path) as checkpoint, pytest.raises(UnreadableError) as caught:
            checkpoint.load(**options)
    assert (caught.value.file, caught.value.tensor, caught.value.stage) == (FILE, "a", "read")
    assert caught.value.offset_bytes == first_bad


@pytest.mark.root
def test_a_hole_that_cannot_be_mapped_is_an_error() -> None:
    """On a tmpfs that is full a hole reads as zeros, and kills whoever touches it in a mapping."""
    with tmpfs(8 * MIB) as folder:
        save_sparse(folder / FILE, {"a": 32 * MIB})
        with coldctl.open(folder) as checkpoint:
            with pytest.raises(UnreadableError, match="through a mapping, from byte 4096"):
                checkpoint.load(alloc="map")
            assert not checkpoint.load(alloc="arena")["a"].any()


@pytest.mark.root
@pytest.mark.parametrize("options", [{"mode": "buffered"}, {"mode": "direct"}, {"alloc": "map"}], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_of_many_small_tensors_the_one_with_the_bad_block_is_named(options: Any, kept: bool) -> None:
    """The kernel reads many of them in one piece, and says no more than that it failed."""
    tensors = {f"t{n:03}": made("U8", 5 * PAGE, seed=n) for n in range(100)}
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        path = filesystem.path / FILE
        save(path, tensors, boundary=4096, past=0 if kept else 1)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        bad = read_shard(path)["t071"].offset // PAGE * PAGE + 2 * PAGE
        filesystem.make_unreadable(path, bad)
        for error in failures(filesystem.path, UnreadableError, **options):
            assert (error.file, error.tensor, error.offset_bytes, error.stage) == (FILE, "t071", bad, "read")


@pytest.mark.root
def test_a_map_names_the_first_bad_page(damaged: Damaged) -> None:
    for error in failures(damaged.folder, UnreadableError, names=NAMES[:3], alloc="map"):
        assert (error.tensor, error.offset_bytes) == (NAMES[2], damaged.first_bad)


@pytest.mark.root
@everywhere
def test_what_can_be_read_of_a_bad_disk_is_loaded(damaged: Damaged, alloc: Any) -> None:
    with coldctl.open(damaged.folder) as checkpoint:
        loaded = checkpoint.load(alloc=alloc, names=NAMES[:2], framework="numpy", exact=True)
    assert {name: tensor.tobytes() for name, tensor in loaded.items()} == {n: TENSORS[n].data for n in NAMES[:2]}


def shorten(nbytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size - nbytes)


def replace(path: Path) -> None:
    """Another file of the same bytes, size and time of change."""
    other, status = path.with_suffix(".other"), path.stat()
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)


CHANGES = {
    "cut on a page": shorten(EACH_BYTES),
    "cut inside a page": shorten(100),
    "cut to nothing": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, path.stat().st_size + PAGE),
    "touched": lambda path: os.utime(path, ns=(1, 1)),
    "replaced": replace,
}


@everywhere
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_another_by_now(folder: Path, alloc: Any, change: str) -> None:
    for error in failures(folder, ChangedError, change=CHANGES[change], alloc=alloc):
        assert error.message.startswith(f"{FILE} was changed or replaced since its header was read")
        assert (error.file, error.stage, error.exit_code) == (FILE, "read", 4)
        assert error.tensor in NAMES


def test_a_file_that_is_gone_by_now(folder: Path) -> None:
    for error in failures(folder, InputError, change=Path.unlink):
        assert (error.file, error.stage) == (FILE, "read")
        assert "No such file" in error.message


class Meddling(Events):
    """Does something to the checkpoint after the first chunk of a load."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle
        self._lock = threading.Lock()

    def advance(self, nbytes: int) -> None:  # noqa: ARG002
        with self._lock:
            meddle, self._meddle = self._meddle, lambda: None
            meddle()


@everywhere
@pytest.mark.parametrize("mode", ["buffered", "direct"])
@pytest.mark.parametrize("cut", [EACH_BYTES + 100, EACH_BYTES + PAGE, 100])
def test_a_file_that_shrinks_while_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any, mode: Any, cut: int
) -> None:
    """Found by the read that ends early, or at the latest when the file is left."""
    monkeypatch.setattr(choice, "MAPPED_CHUNK_BYTES", MIB)  # so that much is left to be read after the first chunk
    if alloc != "arena" and mode == "direct":
        return
    options: Any = {"alloc": alloc} if alloc == "map" else {"alloc": alloc, "mode": mode, "chunk_bytes": MIB}
    before = footprint(folder)
    for _ in range(3):
        save(folder / FILE, TENSORS, boundary=4096)
        with coldctl.open(folder) as checkpoint:
            meddling = Meddling(lambda: shorten(cut)(folder / FILE))
            with pytest.raises(ChangedError, match=f"{FILE} (ended at byte|was changed or replaced)") as caught:
                checkpoint.load(events=meddling, **options)
        assert (caught.value.file, caught.value.stage) == (FILE, "read")
        assert caught.value.tensor in NAMES
    del caught
    assert_given_back(before, folder, within_bytes=EACH_BYTES)


def test_a_change_of_a_file_that_was_read_already_names_that_file(tmp_path: Path) -> None:
    """One thread at a time: it reads the first file, which then changes, and finds out when it goes on to the next."""
    first, second = tmp_path / "model-00001-of-00002.safetensors", tmp_path / "model-00002-of-00002.safetensors"
    save(first, {"a": made("U8", 1000)})
    save(second, {"b": made("U8", 1000)})
    with coldctl.open(tmp_path) as checkpoint:
        meddling = Meddling(lambda: os.utime(first, ns=(1, 1)))
        with pytest.raises(ChangedError) as caught:
            checkpoint.load(alloc="per-tensor", events=meddling)
    assert (caught.value.file, caught.value.tensor, caught.value.stage) == (first.name, "a", "read")
    assert second.name not in caught.value.message


@into_memory
@pytest.mark.parametrize("checks", [{"exact": True}, {"verify": True}])
def test_a_change_while_files_are_read_again_names_file_and_tensor(folder: Path, alloc: Any, checks: Any) -> None:
    class MeddlingLater(Events):
        checking = False

        def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
            self.checking = label == "checking"

        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            if self.checking:
                os.utime(folder / FILE, ns=(1, 1))

    with coldctl.open(folder) as checkpoint, pytest.raises(ChangedError) as caught:
        checkpoint.load(alloc=alloc, events=MeddlingLater(), **checks)
    assert (caught.value.file, caught.value.stage) == (FILE, "verify")
    assert caught.value.tensor in NAMES
    assert f"tensor {caught.value.tensor}" in caught.value.message


class Stopping(Events):
    def raise_if_stopped(self) -> None:
        raise StoppedError(15)


@everywhere
def test_a_load_that_is_stopped(folder: Path, alloc: Any) -> None:
    for error in failures(folder, StoppedError, alloc=alloc, events=Stopping):
        assert error.exit_code == 143
        assert error.message == "stopped by SIGTERM"


@everywhere
def test_what_events_raise_fails_the_load(folder: Path, alloc: Any) -> None:
    class Exploding(Events):
        def advance(self, nbytes: int) -> None:
            raise ZeroDivisionError(nbytes)

    failures(folder, ZeroDivisionError, alloc=alloc, events=Exploding)


class Refusing(Transform):
    """Takes the first three tensors, and fails at the last."""

    def companions(self, name: str, names: Any) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def apply(self, name: str, tensor: Any, companions: Any) -> Any:  # noqa: ARG002
        if name == NAMES[3]:
            raise InputError(f"cannot transform {name}")
        return tensor + 1


@into_memory
def test_a_transform_that_fails(folder: Path, alloc: Any) -> None:
    for error in failures(folder, InputError, alloc=alloc, transform=Refusing()):
        assert error.message == f"cannot transform {NAMES[3]}"
    for error in failures(folder, InputError, alloc=alloc, transform=Refusing(), devices=["cpu", "cpu"]):
        assert error.message == f"cannot transform {NAMES[3]}"
    for error in failures(folder, InputError, alloc=alloc, transform=Refusing(), first_layers=4):
        assert error.message == f"cannot transform {NAMES[3]}"


@everywhere
def test_several_devices_fail_as_one(folder: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any) -> None:
    """The stage of the second device is bad, and the first one is stopped; what is raised is the reason, not that."""
    if alloc == "map":
        return
    monkeypatch.setattr(os, "preadv", failing_preadv(4096 + 3 * EACH_BYTES))
    for error in failures(folder, UnreadableError, alloc=alloc, devices=["cpu"] * 2, split="stage"):
        assert error.tensor == NAMES[3]


def test_an_interrupt_stops_all_devices_before_it_comes_out(folder: Path) -> None:
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)

    failures(folder, KeyboardInterrupt, events=lambda: Meddling(interrupt), devices=["cpu", "cpu"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coldctl")]


GIB = 1 << 30


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tensor of 3 GiB that takes no room on the disk, and a small one."""
    folder = tmp_path_factory.mktemp("huge")
    save_sparse(folder / FILE, {"small": 1000, "large": 3 * GIB})
    return folder


def with_little_room(folder: Path, **options: Any) -> Any:
    """What a load gives in a process with 512 MiB of addresses left: its tensors' sizes and notes, or its error."""

    def limit() -> None:
        used = read_kib("/proc/self/status", "VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, resource.RLIM_INFINITY))

    return in_child(lambda: outcome(folder, **options), prepare=limit)


def outcome(folder: Path, **options: Any) -> Any:
    with coldctl.open(folder) as checkpoint:
        try:
            loaded = checkpoint.load(framework="numpy", **options)
        except ColdctlError as error:
            return type(error), error.stage, error.file, error.tensor, error.exit_code, error.message
        return {name: tensor.nbytes for name, tensor in loaded.items()}, loaded.report.alloc, loaded.report.notes


CORNERED = """
import gc, json, resource, sys, threading
import coldctl
from coldctl.errors import OutOfMemoryError
from coldctl.events import Events
from coldctl.loader.host.memory import read_kib

folder, phase, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])


class Cornering(Events):
    def begin(self, label, total_bytes):
        if label == phase:
            gc.collect()
            threading.stack_size(64 << 10)
            limit = read_kib("/proc/self/status", "VmSize") + (1 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


try:
    coldctl.open(folder).load(framework="numpy", readers=1, events=Cornering(), **options)
except OutOfMemoryError as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(json.dumps([error.stage, error.tensor, error.message.partition(" of ")[0]]))
"""
"""A load that has 1 MiB of addresses left from a phase on, and threads with small stacks to start in them."""


@pytest.mark.parametrize(
    ("phase", "options", "found"),
    [
        ("checking", {"exact": True}, ["verify", None, "cannot get 4.0 MiB"]),
        ("checking", {"verify": True}, ["verify", None, "cannot get 4.0 MiB"]),
        ("loading", {"tp": [1, 16], "names": NAMES[:1]}, ["allocate", NAMES[0], "cannot get 2.0 MiB"]),
    ],
)
def test_no_addresses_are_left_to_read_into(folder: Path, phase: str, options: Any, found: list[Any]) -> None:
    """The second reading takes 4 MiB for each thread, and the rows of which 2 KiB each are wanted take 2 MiB."""
    done = run_python("-c", CORNERED, str(folder), phase, json.dumps(options))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == found


class Inflating:
    """A transform that asks torch for a PiB."""

    def companions(self, name: str, names: Any) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def apply(self, name: str, tensor: Any, companions: Any) -> Any:  # noqa: ARG002
        return torch.empty(1 << 50, dtype=torch.uint8)


def test_what_a_transform_cannot_get_is_an_error_that_names_the_tensor(folder: Path) -> None:
    for error in failures(folder, OutOfMemoryError, transform=Inflating()):
        assert (error.stage, error.tensor) == ("allocate", NAMES[0])
    with coldctl.open(folder) as checkpoint, pytest.raises(OutOfMemoryError) as caught:
        next(checkpoint.stream(transform=Inflating()))
    assert (caught.value.stage, caught.value.tensor) == ("allocate", NAMES[0])


def test_what_events_cannot_get_is_no_error_of_pythons_own(folder: Path) -> None:
    class Greedy(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            bytearray(1 << 60)

    for error in failures(folder, OutOfMemoryError, events=Greedy):
        assert error.stage == "read"


def test_an_arena_that_the_kernel_refuses(huge: Path) -> None:
    kind, stage, _, _, code, message = with_little_room(huge)
    assert (kind, stage, code) == (OutOfMemoryError, "allocate", 5)
    assert message.startswith("cannot get 3.0 GiB of host memory for the tensors: [Errno 12] Cannot allocate memory")


def test_a_tensor_of_its_own_that_the_kernel_refuses_is_named(huge: Path) -> None:
    found = with_little_room(huge, alloc="per-tensor")
    assert found[:5] == (OutOfMemoryError, "allocate", FILE, "large", 5)


def test_files_that_cannot_be_mapped_are_read_and_the_report_says_so(huge: Path) -> None:
    sizes, alloc, notes = with_little_room(huge, alloc="map", names=["small"])
    assert (sizes, alloc) == ({"small": 1000}, "arena")
    assert notes == ("the files could not be mapped (Cannot allocate memory), so they were read",)


def test_a_map_that_cannot_be_had_and_an_arena_that_cannot_either(huge: Path) -> None:
    kind, stage, *_ = with_little_room(huge, alloc="map")
    assert (kind, stage) == (OutOfMemoryError, "allocate")


@pytest.mark.root
def test_a_cgroup_with_too_little_memory_is_seen_before_the_kernel_kills(huge: Path) -> None:
    with memory_cgroup(300 * MIB) as cgroup:
        enter: Callable[[], object] = lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        kind, stage, _, _, code, message = in_child(lambda: outcome(huge), prepare=enter)
        sizes, *_ = in_child(lambda: outcome(huge, names=["small"]), prepare=enter)
        mapped = in_child(lambda: outcome(huge, names=["small"], alloc="map"), prepare=enter)
    assert (kind, stage, code) == (OutOfMemoryError, "allocate", 5)
    assert f"are free by {cgroup}" in message
    assert sizes == {"small": 1000}
    assert mapped == ({"small": 1000}, "map", ())


@pytest.mark.parametrize("alloc", ["arena", "per-tensor"])
def test_loads_that_fit_one_by_one_and_not_together_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, alloc: Any
) -> None:
    """Each device gets 8 MiB, and 12 MiB are free."""
    monkeypatch.setattr(host, "_free", lambda: (12 * MIB, "MemAvailable"))
    with coldctl.open(folder) as checkpoint:
        assert len(checkpoint.load(alloc=alloc)) == len(NAMES)
        assert len(checkpoint.load(devices=["cpu", "cpu"], split="stage", alloc=alloc)) == 2
        assert len(checkpoint.load(devices=["cpu", "cpu"], alloc="map")) == 2
        with pytest.raises(
            OutOfMemoryError, match=r"cannot get 16\.0 MiB .* 12\.0 MiB are free by MemAvailable"
        ) as caught:
            checkpoint.load(devices=["cpu", "cpu"], alloc=alloc)
    assert caught.value.stage == "allocate"


@pytest.mark.root
def test_loads_that_a_cgroup_has_no_room_for_together_are_refused_and_not_killed(tmp_path: Path) -> None:
    save_sparse(tmp_path / FILE, {"large": 200 * MIB})
    with memory_cgroup(300 * MIB) as cgroup:
        enter: Callable[[], object] = lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        with coldctl.open(tmp_path) as checkpoint:

            def together() -> Any:
                with pytest.raises(OutOfMemoryError) as caught:
                    checkpoint.load(devices=["cpu", "cpu"])
                return caught.value.stage, caught.value.message

            sizes, *_ = in_child(lambda: outcome(tmp_path), prepare=enter)
            stage, message = in_child(together, prepare=enter)
    assert sizes == {"large": 200 * MIB}
    assert stage == "allocate"
    assert message.startswith("cannot get 400.0 MiB of host memory")


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    save_sparse(tmp_path / FILE, {"too large": 2 * read_kib("/proc/meminfo", "MemTotal")})
    for error in failures(tmp_path, OutOfMemoryError):
        assert (error.stage, error.exit_code) == ("allocate", 5)
        assert "are free by" in error.message
        assert "stream()" in str(error.hint)


@pytest.mark.parametrize("way", ["load", "stream"])
def test_a_tensor_far_too_large_is_refused_before_anything_is_made_of_it(tmp_path: Path, way: str) -> None:
    """Cut into chunks of 4 MiB first, it would take gigabytes to say no."""
    nbytes = 8 << 40
    header = b'{"large":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (nbytes, nbytes)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    with coldctl.open(tmp_path) as checkpoint:
        ask = checkpoint.load if way == "load" else lambda: next(iter(checkpoint.stream()))
        with PeakAnon() as peak, pytest.raises(OutOfMemoryError, match="stage allocate"):
            ask()
    assert peak.peak_bytes < 64 << 20
