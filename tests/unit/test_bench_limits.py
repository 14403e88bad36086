"""The machine's limits: what is measured, what is left unmeasured and why, and what follows for a load's deadline."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from coldctl.errors import EnvironmentLacksError, StoppedError, UsageError
from coldctl.events import NULL, Events
from coldctl.jobs.bench.counted import Clocked
from coldctl.jobs.bench.destination import Destination, find_destination
from coldctl.jobs.bench.limits.bus import Answer, Bus, answer_for, measure_bus, pinned_rates
from coldctl.jobs.bench.limits.disk import DiskRates, measure_disk
from coldctl.jobs.bench.limits.measured import better, deadline, measure_limits
from coldctl.jobs.bench.limits.memory import block_bytes, measure_memcpy, thread_counts
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.results.bench import Limits
from tests.filesystems import fincore_bytes, holder, in_child, loop_filesystem, memory_cgroup, tmpfs
from tests.standin import StandIn
from tests.tiny import made, write_shard, write_sharded

MIB = 1 << 20

NOTHING = Limits(None, None, None, None, None, None, None, {})


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    """Two shards, neither of whole pages, on a disk of their own."""
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        write_sharded(filesystem.path, [{"a": made("U8", 5 * MIB + 3)}, {"b": made("U8", 9 * MIB)}])
        yield open_checkpoint(filesystem.path)


@pytest.mark.root
def test_the_disk_is_measured_directly_and_through_the_cache(checkpoint: Checkpoint) -> None:
    rates = measure_disk(checkpoint, NULL)
    assert rates.direct is not None
    assert rates.direct > 0
    assert rates.buffered is not None
    assert rates.buffered > 0
    assert rates.depth in (1, 4, 16, 32)
    assert rates.unmeasured == {}
    assert [fincore_bytes(Path(shard.path)) for shard in checkpoint.shards] == [0, 0]


@pytest.mark.root
def test_one_measurement_reads_at_most_one_pass_over_the_files(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = passes_of(monkeypatch)
    measure_disk(checkpoint, NULL)
    assert 4 + 4 <= len(passes) <= 4 * (4 + 4)  # buffered and direct ones, fewer where the disk is slow
    assert all(checkpoint.bytes - 2 * 4 * MIB < each.bytes <= checkpoint.bytes + 4 * MIB for each in passes)


@pytest.mark.root
def test_the_clock_of_a_pass_begins_when_all_of_its_threads_run(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = passes_of(monkeypatch)
    measure_disk(checkpoint, NULL)
    threads = [each.threads_at_begin for each in passes]
    direct = threads.index(1)
    assert 4 <= direct <= 16
    assert threads[:direct] == ([2, 4, 8, 32] * 4)[:direct]
    assert 4 <= len(threads[direct:]) <= 16
    assert threads[direct:] == ([1, 4, 16, 32] * 4)[: len(threads) - direct]
    assert all(each.seconds > 0 for each in passes)


class Pass(Clocked):
    """The clock of one pass, with how many threads there were when it began."""

    def begin_clock(self) -> None:
        self.threads_at_begin = sum(thread.name.startswith("coldctl-") for thread in threading.enumerate())
        super().begin_clock()


def passes_of(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """A list that the passes over the disk are going to be in."""
    passes: list[Pass] = []

    def noted(job: Events) -> Pass:
        passes.append(Pass(job))
        return passes[-1]

    monkeypatch.setattr("coldctl.jobs.bench.limits.disk.Clocked", noted)
    return passes


@pytest.mark.root
def test_a_pass_over_files_that_were_not_cold_does_not_count(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = passes_of(monkeypatch)
    file = Path(checkpoint.shards[1].path)
    with ExitStack() as stack:

        class Holding(Events):
            """From the first pass on somebody maps one of the files."""

            held = False

            def raise_if_stopped(self) -> None:
                if passes and not self.held:
                    self.held = True
                    file.read_bytes()
                    stack.enter_context(holder(file, "map"))

        rates = measure_disk(checkpoint, Holding())
    assert [each.threads_at_begin for each in passes] == [2]
    assert rates.buffered == passes[0].bytes / passes[0].seconds
    assert (rates.direct, rates.depth) == (None, None)
    assert rates.unmeasured.keys() == {"disk_direct"}
    assert rates.unmeasured["disk_direct"].startswith("the files cannot be had out of the page cache: ")
    assert "mapped by" in rates.unmeasured["disk_direct"]


@pytest.mark.root
def test_files_without_a_whole_page_have_no_direct_rate() -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        write_shard(filesystem.path / "model.safetensors", {"a": made("U8", 1000)})
        os.sync()
        rates = measure_disk(open_checkpoint(filesystem.path), NULL)
    assert rates.buffered is not None
    assert rates.buffered > 0
    assert rates.direct is None
    assert rates.unmeasured == {"disk_direct": "the files are too small to be read in whole pages"}


@pytest.mark.root
def test_a_file_that_stays_in_memory_tells_nothing_of_the_disk(checkpoint: Checkpoint) -> None:
    path = Path(checkpoint.shards[1].path)
    path.read_bytes()
    with holder(path, "map"):
        rates = measure_disk(checkpoint, NULL)
    assert (rates.direct, rates.depth, rates.buffered) == (None, None, None)
    assert rates.unmeasured.keys() == {"disk_direct", "disk_buffered"}
    for reason in rates.unmeasured.values():
        assert reason.startswith("the files cannot be had out of the page cache: ")
        assert "mapped by" in reason


@pytest.mark.root
@pytest.mark.parametrize(("limit_bytes", "deepest"), [(40 * MIB, 4), (2 * MIB, None)])
def test_a_small_cgroup_has_fewer_reads_under_way_and_none_where_there_is_no_room(
    checkpoint: Checkpoint, limit_bytes: int, deepest: int | None
) -> None:
    """Each takes 4 MiB, and half of what is free is taken at most; 32 of them would have the kernel kill the job."""
    with memory_cgroup(limit_bytes) as group:
        rates = in_child(
            lambda: measure_disk(checkpoint, NULL),
            prepare=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
    if deepest is None:
        assert rates == DiskRates(
            None, None, None, dict.fromkeys(("disk_direct", "disk_buffered"), "too little memory is free")
        )
    else:
        assert rates.direct is not None
        assert rates.depth is not None
        assert rates.depth <= deepest


@pytest.mark.root
def test_tmpfs_has_no_disk() -> None:
    with tmpfs(16 * MIB) as folder:
        write_shard(folder / "model.safetensors", {"a": made("U8", MIB)})
        rates = measure_disk(open_checkpoint(folder), NULL)
    assert (rates.direct, rates.depth, rates.buffered) == (None, None, None)
    assert rates.unmeasured == {"disk_direct": "tmpfs has no disk", "disk_buffered": "tmpfs has no disk"}


@pytest.mark.root
def test_bytes_that_cannot_be_read_leave_the_disk_unmeasured() -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        write_shard(filesystem.path / "model.safetensors", {"a": made("U8", 8 * MIB)})
        checkpoint = open_checkpoint(filesystem.path)
        os.sync()  # only what is on the disk has a place there
        filesystem.make_unreadable(filesystem.path / "model.safetensors", 4 * MIB)
        rates = measure_disk(checkpoint, NULL)
    assert (rates.direct, rates.depth, rates.buffered) == (None, None, None)
    for name in ("disk_direct", "disk_buffered"):
        assert rates.unmeasured[name].startswith("cannot read model.safetensors at byte ")


@pytest.mark.root
def test_without_cold_loads_the_files_stay_where_they_are(checkpoint: Checkpoint) -> None:
    for shard in checkpoint.shards:
        Path(shard.path).read_bytes()
    limits = measure_limits(checkpoint, None, ("warm",), NULL)
    assert [fincore_bytes(Path(shard.path)) >= shard.size_bytes for shard in checkpoint.shards] == [True, True]
    assert limits.disk_direct_bytes_per_second is limits.disk_buffered_bytes_per_second is limits.disk_depth is None
    assert limits.memcpy_bytes_per_second is not None
    assert limits.memcpy_bytes_per_second > 0
    assert limits.unmeasured == dict.fromkeys(
        ("disk_direct", "disk_buffered"), "no cold loads were asked for, and the files are to stay in the page cache"
    ) | dict.fromkeys(("h2d_1", "h2d_2", "h2d_4"), "loads go to host memory")


@pytest.mark.root
def test_what_the_bus_gave_is_a_limit_and_else_its_reason_stands_there(checkpoint: Checkpoint) -> None:
    bus = Bus("cuda:0", None, {1: 50e9, 2: 51e9, 4: 49e9}, None)
    limits = measure_limits(checkpoint, bus, ("warm",), NULL)
    assert (limits.h2d_1_bytes_per_second, limits.h2d_2_bytes_per_second, limits.h2d_4_bytes_per_second) == (
        50e9,
        51e9,
        49e9,
    )
    assert limits.unmeasured.keys() == {"disk_direct", "disk_buffered"}
    limits = measure_limits(checkpoint, Bus("cuda:0", None, {}, "cannot pin"), ("warm",), NULL)
    assert limits.h2d_1_bytes_per_second is None
    assert limits.unmeasured["h2d_4"] == "cannot pin"


@pytest.mark.root
def test_measuring_can_be_stopped(checkpoint: Checkpoint) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(2)

    with pytest.raises(StoppedError):
        measure_disk(checkpoint, Stopping())
    with pytest.raises(StoppedError):
        measure_memcpy(Stopping())


def test_the_better_of_two_measurements_counts_for_each_limit() -> None:
    before = replace(
        NOTHING,
        disk_direct_bytes_per_second=2e9,
        disk_depth=4,
        memcpy_bytes_per_second=8e9,
        unmeasured={"disk_buffered": "why", "h2d_1": "host", "h2d_2": "host", "h2d_4": "host"},
    )
    after = replace(
        NOTHING,
        disk_direct_bytes_per_second=3e9,
        disk_depth=16,
        disk_buffered_bytes_per_second=1e9,
        unmeasured={"memcpy": "too little memory", "h2d_1": "host", "h2d_2": "host", "h2d_4": "host"},
    )
    host = {"h2d_1": "host", "h2d_2": "host", "h2d_4": "host"}
    assert better(before, after) == better(after, before) == Limits(3e9, 1e9, 8e9, None, None, None, 16, host)
    assert better(before, replace(before, disk_direct_bytes_per_second=None, disk_depth=None)).disk_depth == 4


def test_a_deadline_is_twenty_times_the_slower_way_of_the_disk_and_says_so() -> None:
    limits = replace(NOTHING, disk_direct_bytes_per_second=2e9, disk_buffered_bytes_per_second=1e9)
    found = deadline(6_000_000_000, limits)
    assert found.seconds == 120 + 20 * 6
    assert found.reason == (
        "4 min 00 s (2 min 00 s to start, and 20 times what 5.6 GiB take at the measured 1.00 GB/s of the disk)"
    )
    unmeasured = deadline(6_000_000_000, NOTHING)
    assert unmeasured.seconds == 120 + 20 * 60
    assert "at the supposed 100 MB/s of the disk" in unmeasured.reason


@pytest.mark.root
def test_memory_is_not_measured_with_less_than_four_blocks_of_it_free() -> None:
    with memory_cgroup(3 * block_bytes()) as group:
        rate = in_child(
            lambda: measure_memcpy(NULL),
            prepare=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
    assert rate is None


def test_threads_double_up_to_the_cpus() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(2) == [1, 2]
    assert thread_counts(6) == [1, 2, 4, 6]
    assert thread_counts(8) == [1, 2, 4, 8]


def test_blocks_are_twice_all_caches_of_the_last_level(tmp_path: Path) -> None:
    assert block_bytes(str(tmp_path)) == 64 * MIB
    for cpu, group in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for index, (level, size, shared) in enumerate(((1, "32K", f"{cpu}"), (3, "49152K", group))):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{shared}\n")
    assert block_bytes(str(tmp_path)) == 2 * 2 * 48 * MIB
    (tmp_path / "sys/devices/system/cpu/cpu3/cache/index1/size").write_text("much\n")
    assert block_bytes(str(tmp_path)) == 2 * 2 * 48 * MIB


def test_the_bus_is_measured_on_one_two_and_four_streams_and_all_is_given_back() -> None:
    device = StandIn()
    device.pin_limit_bytes = 2 * MIB
    device.copy_bytes_per_second = 1e9
    rates = pinned_rates(device)
    assert rates.keys() == {1, 2, 4}
    assert all(0 < rate <= 1e9 for rate in rates.values())
    assert device.copies_done == (1 + 2 + 4) + 3 * 16 * 2
    assert device.violations == []
    assert (device.pinned.now_bytes, device.allocated.now_bytes) == (0, 0)


def test_streams_that_only_queue_behind_each_other_show_neither_gain_nor_loss() -> None:
    """On four streams each copy waits for three others: by the sum of their times the bus would seem a fourth as fast,
    and by a stream's own time four times as fast."""
    device = StandIn()
    device.pin_limit_bytes = 2 * MIB
    device.copy_bytes_per_second = 200e6
    rates = pinned_rates(device)
    assert 0.5 < rates[4] / rates[1] < 2


def test_a_device_without_pinned_memory_has_a_bus_that_was_not_measured() -> None:
    device = StandIn()
    device.pin_limit_bytes = 0
    answer = answer_for("stand-in:0", lambda _: device)
    assert answer.bus is not None
    assert (answer.bus.device, answer.bus.bytes_per_second) == ("stand-in:0", {})
    assert "cannot pin" in (answer.bus.reason or "")


def test_a_device_that_cannot_be_used_is_an_answer_too() -> None:
    def lacking(name: str) -> StandIn:
        raise EnvironmentLacksError(f"there is no {name}", hint="buy one")

    assert answer_for("cuda:7", lacking) == Answer(
        error="EnvironmentLacksError", message="there is no cuda:7", hint="buy one"
    )


def test_a_gpu_that_is_not_there_is_found_missing_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EnvironmentLacksError, match="cuda:3") as caught:
        measure_bus("cuda:3", NULL)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    with pytest.raises(UsageError, match="'gpu' is no CUDA device"):
        measure_bus("gpu", NULL)


def test_auto_is_the_host_where_there_is_no_gpu_and_cpu_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = find_destination("auto", NULL)
    assert (found.device, found.bus) == ("cpu", None)
    assert (found.note or "").startswith("loads go to host memory: ")
    assert find_destination("cpu", NULL, command=("/no/such/program",)) == Destination("cpu", None, None)


def test_a_process_that_dies_with_the_driver_is_an_error_of_the_device() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"cuda:0 cannot be used: the process that tried it was killed by"):
        find_destination("cuda:0", NULL, command=("/bin/sh", "-c", "kill -ABRT $$"))
    with pytest.raises(EnvironmentLacksError, match="SIGABRT"):
        find_destination("auto", NULL, command=("/bin/sh", "-c", "kill -ABRT $$"))
