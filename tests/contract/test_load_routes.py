"""Loads from real filesystems: the same bytes everywhere, what is cold past the page cache, which stays as it was.

Pages leave this machine's cache by themselves now and then, so what was resident is asserted with some room.
"""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import coldctl
from coldctl.errors import EnvironmentLacksError
from coldctl.events import Events
from coldctl.loader.load import route
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.source import LocalFile
from coldctl.results.load import LoadReport
from tests.filesystems import PAGE, as_nobody, drop, fincore_bytes, loop_filesystem, overlayfs, tmpfs
from tests.loads import MIB, save
from tests.tiny import made, snapshot

pytestmark = pytest.mark.root

FILE = "model.safetensors"
TENSORS = {
    "model.embed_tokens.weight": made("F32", 1024, 1024),
    "model.layers.0.self_attn.o_proj.weight": made("F32", 512, 4096),
    "model.layers.0.mlp.down_proj.weight": made("F32", 4096, 500),
    "model.layers.1.norm.weight": made("F16", 500),
    "model.layers.1.self_attn.o_proj.weight": made("F32", 1024, 4096, seed=1),
    "lm_head.weight": made("F16", 1002),
}
BYTES = sum(len(tensor.data) for tensor in TENSORS.values())
DATA_BEGINS = 4096 + 8


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs", "tmpfs", "overlayfs"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a filesystem of that kind, with a checkpoint of 36 MiB: one run that begins 8 bytes past a page."""
    with ExitStack() as stack:
        if request.param == "tmpfs":
            shown = folder = stack.enter_context(tmpfs(128 * MIB))
        else:
            kind = "ext4" if request.param == "overlayfs" else request.param
            shown = folder = stack.enter_context(loop_filesystem(kind, 512 * MIB)).path
        write(folder / FILE)
        if request.param == "overlayfs":
            shown = stack.enter_context(overlayfs(folder))
        yield shown


@pytest.fixture(scope="module", params=["ext4", "xfs", "btrfs"])
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    with loop_filesystem(request.param, 512 * MIB) as filesystem:
        write(filesystem.path / FILE)
        yield filesystem.path


def write(path: Path) -> None:
    save(path, TENSORS, boundary=4096, past=8)
    path.chmod(0o644)
    write_out(path)


def write_out(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@pytest.fixture
def cold_goes_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way is faster depends on the machine. Without a trial, what is cold is read directly."""
    monkeypatch.setattr(route, "_TRIALS_EACH", 0)


def load(folder: Path, **options: Any) -> LoadReport:
    """The report of a load that brought the bytes which were written."""
    with coldctl.open(folder) as checkpoint:
        loaded: Loaded = checkpoint.load(framework="numpy", **options)
    assert {name: tensor.tobytes() for name, tensor in loaded.items()} == {n: t.data for n, t in TENSORS.items()}
    return loaded.report


def takes_direct_reads(path: Path) -> bool:
    """As tmpfs does since Linux 6.6."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "buffered"}, {"mode": "direct"}, {"alloc": "map"}, {"alloc": "per-tensor"}, {"order": "name"}],
    ids=str,
)
def test_every_way_gives_the_same(place: Path, options: Any, cold: bool) -> None:
    if cold:
        drop(place / FILE)
    if options == {"mode": "direct"} and not takes_direct_reads(place / FILE):
        with pytest.raises(EnvironmentLacksError, match="cannot be read with O_DIRECT"):
            load(place, **options)
        return
    report = load(place, **options)
    assert report.bytes == BYTES
    assert report.read_bytes == BYTES or (report.alloc == "map" and report.read_bytes < BYTES)
    assert report.direct_bytes <= whole_pages(DATA_BEGINS, DATA_BEGINS + BYTES)


@pytest.mark.parametrize("cold", [True, False])
def test_ranks_get_their_parts_from_any_filesystem(place: Path, cold: bool) -> None:
    reference = load_file(place / FILE)
    if cold:
        drop(place / FILE)
    with coldctl.open(place) as checkpoint:
        ranks = checkpoint.load(devices=["cpu", "cpu"], split="tp", framework="numpy")
    for rank, loaded in enumerate(ranks):
        assert loaded.keys() == reference.keys()
        for name, tensor in loaded.items():
            parts = np.split(reference[name], 2, axis=1 if "o_proj" in name or "down_proj" in name else 0)
            whole = "norm" in name or "lm_head" in name  # in one dimension there are no rows
            assert np.array_equal(tensor, reference[name] if whole else parts[rank], equal_nan=True), name


def whole_pages(begin: int, end: int) -> int:
    """The bytes of the pages that lie in a range as a whole."""
    return end // PAGE * PAGE - -(-begin // PAGE) * PAGE


def stays_cold(path: Path, but_for_bytes: int = 0) -> None:
    """The header and the ends of a run come through the cache, with what the kernel reads ahead of them."""
    assert fincore_bytes(path) <= but_for_bytes + 3 * MIB


def test_direct_reads_take_whole_pages_and_leave_the_cache_cold(disk: Path) -> None:
    drop(disk / FILE)
    report = load(disk, mode="direct")
    assert (report.mode, report.reason) == ("direct", "as asked for")
    assert report.direct_bytes == whole_pages(DATA_BEGINS, DATA_BEGINS + BYTES)
    stays_cold(disk / FILE)


@pytest.mark.usefixtures("cold_goes_direct")
def test_auto_reads_what_is_cold_directly_and_leaves_it_cold(disk: Path) -> None:
    drop(disk / FILE)
    report = load(disk)
    assert report.direct_bytes == whole_pages(DATA_BEGINS, DATA_BEGINS + BYTES)
    assert report.mode == "direct"
    assert report.reason == "auto: nearly all of it was not in the page cache and was read directly"
    stays_cold(disk / FILE)


@pytest.mark.usefixtures("cold_goes_direct")
def test_auto_copies_what_is_warm_and_changes_nothing(disk: Path) -> None:
    warm(disk / FILE, 0, DATA_BEGINS + BYTES)
    report = load(disk)
    assert report.direct_bytes <= BYTES // 4
    if report.direct_bytes == 0:
        assert (report.mode, report.reason) == ("buffered", "auto: all of it was in the page cache")
    assert fincore_bytes(disk / FILE) >= 3 * BYTES // 4


@pytest.mark.usefixtures("cold_goes_direct")
@pytest.mark.parametrize("half", ["first", "second"])
def test_auto_decides_for_each_range(disk: Path, half: str) -> None:
    """Chunks are cut at multiples of 8 MiB of the file. Pages that left the cache may make one of them cold."""
    path, middle = disk / FILE, 24 * MIB
    drop(path)
    if half == "first":
        warm(path, 0, middle)
        cold_bytes = whole_pages(middle, DATA_BEGINS + BYTES)
    else:
        warm(path, middle, DATA_BEGINS + BYTES - middle)
        cold_bytes = whole_pages(DATA_BEGINS, middle)
    report = load(disk)
    assert report.read_bytes == BYTES
    assert -MIB <= report.direct_bytes - cold_bytes <= 8 * MIB
    assert fincore_bytes(path) >= BYTES - cold_bytes - 8 * MIB
    stays_cold(path, BYTES - cold_bytes)


@pytest.mark.usefixtures("cold_goes_direct")
@pytest.mark.parametrize(("warm_mib", "is_direct"), [(1, True), (3, False)])
def test_a_range_goes_the_way_of_most_of_its_pages(disk: Path, warm_mib: int, is_direct: bool) -> None:
    """One or three MiB of every four are warm."""
    drop(disk / FILE)
    for start in range(0, 36 * MIB, 4 * MIB):
        warm(disk / FILE, start, warm_mib * MIB)
    whole = whole_pages(DATA_BEGINS, DATA_BEGINS + BYTES)
    direct_bytes = load(disk).direct_bytes
    assert direct_bytes >= whole - 4 * MIB if is_direct else direct_bytes <= 12 * MIB


def warm(path: Path, offset: int, nbytes: int) -> None:
    """Read exactly these pages, without read-ahead."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(fd, nbytes, offset)) == nbytes
    os.close(fd)


def test_auto_tries_both_ways_before_it_takes_one(disk: Path) -> None:
    """Of some nine cold chunks every other one is read directly, until eight are known; read-ahead may warm some."""
    drop(disk / FILE)
    report = load(disk)
    assert 4 * MIB - PAGE <= report.direct_bytes < BYTES
    assert report.mode in ("direct", "buffered")
    assert report.reason.startswith("auto: ")


def test_a_filesystem_that_takes_no_direct_reads_is_read_buffered_and_said_so(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFile, "open_direct", lambda _: None)
    drop(disk / FILE)
    report = load(disk)
    assert (report.mode, report.direct_bytes) == ("buffered", 0)
    assert report.reason == "auto: all of it is where no direct reads are taken, so it was read through the page cache"
    with pytest.raises(EnvironmentLacksError, match="cannot be read with O_DIRECT") as caught:
        load(disk, mode="direct")
    assert (caught.value.file, caught.value.stage) == (FILE, "read")
    assert "mode auto" in str(caught.value.hint)


def test_nobody_may_not_ask_what_is_resident_and_reads_buffered(disk: Path) -> None:
    disk.chmod(0o755)
    drop(disk / FILE)
    report = as_nobody(lambda: load(disk))
    assert (report.mode, report.direct_bytes, report.read_bytes) == ("buffered", 0, BYTES)
    why = "all of it was read through the page cache, since the kernel does not tell what is in it"
    assert report.reason == f"auto: {why}"
    assert as_nobody(lambda: load(disk, mode="direct")).direct_bytes == whole_pages(DATA_BEGINS, DATA_BEGINS + BYTES)


@pytest.mark.usefixtures("cold_goes_direct")
def test_what_is_cold_and_not_aligned_is_not_told_to_have_been_in_the_page_cache(disk: Path) -> None:
    """A run of 12 MiB on its boundaries and one of 21 MiB one byte off: 12 of 33 are 36 %."""
    folder = disk / "two"
    save(folder / "model-00001-of-00002.safetensors", {"even": made("F32", 3 * MIB)}, boundary=4096)
    save(folder / "model-00002-of-00002.safetensors", {"odd": made("F32", 21 * MIB // 4)}, past=1)
    for path in folder.iterdir():
        write_out(path)
        drop(path)
    report = coldctl.open(folder).load(framework="numpy").report
    assert (report.mode, report.direct_bytes, report.read_bytes) == ("buffered", 12 * MIB, 33 * MIB)
    assert report.reason == (
        "auto: 64 % is placed otherwise than in its file, so it was read through the page cache (coldctl repack aligns "
        "it); 36 % was not in the page cache and was read directly"
    )


def test_a_cold_file_that_came_faster_through_the_page_cache_is_told_so(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route._Trial, "way", lambda _: "buffered")
    monkeypatch.setattr(route, "mincore", lambda *_: None)  # read-ahead of one range may warm the next
    drop(disk / FILE)
    report = load(disk)
    assert (report.mode, report.direct_bytes) == ("buffered", 0)
    why = "was not in the page cache, and was read through it, which was faster or had to be tried"
    assert report.reason == f"auto: all of it {why}"


def test_a_file_in_memory_is_in_the_page_cache() -> None:
    with tmpfs(128 * MIB) as folder:
        write(folder / FILE)
        report = load(folder)
    assert (report.mode, report.reason) == ("buffered", "auto: all of it was in the page cache")


def mappings_of(path: Path) -> list[str]:
    """The permissions of each mapping of a file in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith(str(path))]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_map_is_shared_and_read_only_and_goes_with_its_tensors(place: Path, framework: Any) -> None:
    path = place / FILE
    gc.collect()
    assert mappings_of(path) == []
    with coldctl.open(place) as checkpoint:
        loaded = checkpoint.load(alloc="map", framework=framework)
    assert set(mappings_of(path)) == {"r--s"}
    one = loaded["model.layers.1.norm.weight"]
    del loaded
    assert set(mappings_of(path)) == {"r--s"}
    del one
    assert mappings_of(path) == []


@pytest.mark.parametrize("alloc", ["arena", "per-tensor", "map"])
def test_no_load_ever_maps_the_file_for_writing(place: Path, alloc: Any) -> None:
    path = place / FILE
    seen: set[str] = set()

    class Looking(Events):
        def advance(self, nbytes: int) -> None:  # noqa: ARG002
            seen.update(mappings_of(path))

    with coldctl.open(place) as checkpoint:
        checkpoint.load(alloc=alloc, events=Looking(), verify=True)
    assert seen <= {"r--s"}
    gc.collect()
    assert mappings_of(path) == []


def test_a_map_has_its_pages_in_the_cache_and_reads_what_was_not_there(disk: Path) -> None:
    """Ranges are of 16 MiB, and read-ahead may have warmed one before it is looked at."""
    drop(disk / FILE)
    with coldctl.open(disk) as checkpoint:
        cold = checkpoint.load(alloc="map")
        assert fincore_bytes(disk / FILE) >= 3 * BYTES // 4
        warm = checkpoint.load(alloc="map")
    assert BYTES // 2 <= cold.report.read_bytes <= BYTES
    assert warm.report.read_bytes <= BYTES // 2


def test_a_checkpoint_is_only_ever_read(place: Path) -> None:
    before, changed_ns = snapshot(place), (place / FILE).stat().st_ctime_ns
    for alloc in ("arena", "per-tensor", "map"):
        load(place, alloc=alloc, verify=True)
    assert snapshot(place) == before
    assert (place / FILE).stat().st_ctime_ns == changed_ns
