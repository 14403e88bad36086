"""What holds a load: each explanation from figures that show it, and none from figures that do not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.jobs.bench.options import DEVICE_MODES, HOST_MODES
from coldctl.jobs.bench.verdict.bound import bound_of
from coldctl.jobs.bench.verdict.yardstick import Limit, yardstick
from coldctl.results.bench import BenchRun, Contender, Limits
from coldctl.results.load import CopyFacts, RingFacts, Stage
from tests.bench_results import BYTES, MIB, contender, gpu_limits, gpu_run, limits, peer, run

OF_PEER = "and its stages were not measured; coldctl's own ways show what can be had"
NOTHING = "no stage stands out; the timeline of --report may show more"
UNMEASURED = Limits(None, None, None, None, None, None, None, {})


def stages(**seconds: float) -> tuple[Stage, ...]:
    """Each of the checkpoint's bytes."""
    return tuple(Stage(name, 0.0, each, BYTES) for name, each in seconds.items())


def bound(each: BenchRun, by: Contender, within: Limits, device: str, cpus: int) -> str:
    return bound_of(by, each, within, {}, device=device, cpus=cpus)


def on_host(each: BenchRun, by: Contender | None = None, within: Limits | None = None, cpus: int = 16) -> str:
    return bound(each, by or contender(each.contender), within or limits(), "cpu", cpus)


def on_gpu(each: BenchRun, by: Contender | None = None, within: Limits | None = None, cpus: int = 16) -> str:
    return bound(each, by or contender(each.contender), within or gpu_limits(), "cuda:0", cpus)


class TestTheLimit:
    """Disk 2.5 GB/s direct and 2.2 buffered, memcpy 10 GB/s, a bus of 50 GB/s."""

    @pytest.mark.parametrize(
        ("each", "name"),
        [
            (run("buffered", "cold"), "disk_direct"),
            (run("map", "cold"), "disk_direct"),
            (run("safetensors", "cold", mode=None), "disk_direct"),
            (run("buffered", "warm"), "memcpy"),
            (run("per-tensor", "warm"), "memcpy"),
            (run("direct", "warm", direct_bytes=BYTES), "disk_direct"),
            (run("direct", "warm", direct_bytes=BYTES // 4), "memcpy"),
        ],
    )
    def test_on_the_host_is_the_disk_for_what_comes_off_it_and_else_copying(self, each: BenchRun, name: str) -> None:
        found = yardstick(each, limits(), on_device=False)
        assert (found.limit and found.limit.name, found.unmeasured) == (name, ())

    @pytest.mark.parametrize("mode", ["map", None])
    def test_there_is_none_for_what_copies_nothing_or_nobody_knows(self, mode: str | None) -> None:
        assert yardstick(run("map", "warm", mode=mode), limits(), on_device=False) == (None, ())

    def test_of_the_disk_is_the_better_of_two_ways_of_reading(self) -> None:
        cached = limits(disk_buffered_bytes_per_second=3e9)
        assert yardstick(run(), cached, on_device=False).limit == Limit("disk_buffered", 3e9)

    @pytest.mark.parametrize(
        ("each", "name"),
        [
            (gpu_run("ring", "cold"), "disk_direct"),
            (gpu_run("ring", "warm"), "memcpy"),
            (gpu_run("mapped", "warm"), "h2d_2"),
            (gpu_run("gds", "warm"), "disk_direct"),
            (gpu_run("runai", "warm", mode=None), "h2d_2"),
        ],
    )
    def test_on_a_gpu_is_the_least_of_what_the_bytes_pass(self, each: BenchRun, name: str) -> None:
        bus = gpu_limits(h2d_2_bytes_per_second=51e9)
        found = yardstick(each, bus, on_device=True).limit
        assert found is not None
        assert found.name == name

    def test_is_a_narrow_bus_where_disk_and_memory_are_faster(self) -> None:
        narrow = gpu_limits(**{f"h2d_{n}_bytes_per_second": 1e9 for n in (1, 2, 4)})
        assert yardstick(gpu_run("ring", "cold"), narrow, on_device=True).limit == Limit("h2d_1", 1e9)

    def test_is_what_was_measured_and_the_rest_is_named(self) -> None:
        found = yardstick(gpu_run("ring", "cold"), limits(), on_device=True)
        assert found == (Limit("disk_direct", 2.5e9), ("h2d_1",))
        assert yardstick(gpu_run("ring", "warm"), UNMEASURED, on_device=True) == (None, ("memcpy", "h2d_1"))


class TestAtTheLimit:
    def test_the_disk_holds_a_cold_load(self) -> None:
        # 8 GB in 3.4 s are 2.353 GB/s, 94.1 % of 2.5.
        told = "the disk: 94.1 % of what the disk gives to direct reads; "
        direct = run("direct", "cold", 3.4, direct_bytes=BYTES)
        auto = "a faster disk, or the page cache warmed first (coldctl prewarm)"
        assert on_host(direct, by=contender("auto")) == told + auto
        assert on_host(direct).startswith(told + "a faster disk, or mode auto with the page cache warmed first")
        assert "if it reads through that" in on_host(run("runai", "cold", 3.4, mode=None), by=peer("runai"))

    def test_copying_holds_a_warm_load(self) -> None:
        # 8 GB in 0.9 s are 8.889 GB/s, 88.8 % of 10.
        each = run("buffered", "warm", 0.9, stages=())
        assert on_host(each) == "memory: 88.8 % of what copying from memory to memory gives; mode map copies nothing"

    def test_the_bus_holds_a_load_onto_a_gpu(self) -> None:
        each = gpu_run("mapped", "warm", 0.18, stages=())
        told = "the bus: 88.8 % of what pinned copies on 1 stream give; fewer bytes (a smaller dtype), or a faster link"
        assert on_gpu(each) == told

    def test_a_limit_that_was_beaten_by_far_is_none(self) -> None:
        # 8 GB in 2 s are 160 % of 2.5 GB/s.
        told = "not known: 160 % of what the disk gives to direct reads, so that was measured too low to be a limit"
        assert on_host(run("direct", "cold", 2.0)).startswith(told)
        # 8 GB in 3 s are 106.6 %: as good as at it.
        assert on_host(run("direct", "cold", 3.0)).startswith("the disk: 106.6 % of")

    def test_a_share_short_of_it_is_not_at_it(self) -> None:
        # 8 GB in 4 s are 80 % of 2.5 GB/s.
        assert not on_host(run("direct", "cold", 4.0, direct_bytes=BYTES)).startswith("the disk:")

    def test_the_slower_way_of_reading_is_told_apart(self) -> None:
        # 8 GB in 8 s are 1 GB/s: 90.9 % of 1.1 GB/s through the page cache, where direct reads got 2.5.
        slow = limits(disk_buffered_bytes_per_second=1.1e9)
        told = "the way of reading: 90.9 % of what the disk gives through the page cache; "
        other = "direct reads gave 2.27 times as much when that was measured (mode direct)"
        assert on_host(run("buffered", "cold", 8.0), within=slow) == told + other
        fast = limits(disk_direct_bytes_per_second=1.1e9, disk_buffered_bytes_per_second=2.5e9)
        told = "the way of reading: 90.9 % of what the disk gives to direct reads; reads through the page cache "
        gave = "gave 2.27 times as much when that was measured "
        each = run("direct", "cold", 8.0, direct_bytes=BYTES)
        assert on_host(each, within=fast) == told + gave + "(mode buffered)"
        assert on_gpu(each, within=fast) == told + gave + "(mode ring)"

    def test_the_other_way_of_reading_is_not_advised_where_it_was_tried_and_was_no_faster(self) -> None:
        # 8 GB in 8 s are 1 GB/s.
        slow, each = limits(disk_buffered_bytes_per_second=1.1e9), run("buffered", "cold", 8.0)
        by = contender("buffered")
        for rate, advised in ((0.9e9, False), (1.5e9, True)):
            told = bound_of(by, each, slow, {"buffered": 1e9, "direct": rate}, device="cpu", cpus=16)
            assert ("mode direct" in told) == advised

    def test_ways_of_reading_that_differ_by_little_are_not(self) -> None:
        # 8 GB in 4 s are 90.9 % of 2.2 GB/s, and direct reads got 2.5.
        assert not on_host(run("buffered", "cold", 4.0)).startswith("the way of reading")


class TestStages:
    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("plan", "headers and plan: 60 % of the load; for 291 tensors; it grows with their number"),
            ("allocate", "allocate: 60 % of the load; mode map needs no memory"),
            ("verify", "verify: 60 % of the load; leave it out where the checkpoint was verified before"),
            (
                "touch",
                "touching every byte once the loader had returned: 60 % of the load; a faster loader helps little",
            ),
        ],
    )
    def test_one_that_nothing_overlaps_holds_the_load_when_it_takes_most_of_it(self, name: str, told: str) -> None:
        assert on_host(run("buffered", "warm", 10.0, stages=stages(**{name: 6.0, "read": 4.0}))).startswith(told)
        assert not on_host(run("buffered", "warm", 10.0, stages=stages(**{name: 4.9}))).startswith(told[:5])

    def test_pinning_holds_a_small_load_onto_a_gpu(self) -> None:
        told = on_gpu(gpu_run("ring", "warm", 10.0, stages=stages(pin=5.5, read=4.0, h2d=3.0)))
        assert told == "pin: 55 % of the load; it is the same for every checkpoint; mode per-tensor pins nothing"

    def test_a_cold_peer_may_read_while_its_bytes_are_touched(self) -> None:
        each = run("safetensors", "cold", 10.0, mode=None, stages=stages(touch=9.0))
        assert "if that is what brings the pages, warm the page cache first" in on_host(each, by=peer())
        assert on_host(replace(each, cache="warm"), by=peer()).endswith("; a faster loader helps little")

    def test_small_tensors_hold_a_load_that_takes_them_one_by_one(self) -> None:
        # 8e9 / 20,000 bytes are 390.6 KiB, and 4 s / 20,000 are 0.2 ms.
        each = run("per-tensor", "warm", 4.0, tensors=20_000)
        told = (
            "small tensors: 20,000 one by one, 390.6 KiB and 0.2 ms each on average; mode buffered takes many at once"
        )
        assert on_host(each) == told
        assert "mode ring takes many" in on_gpu(replace(each, mode="per-tensor"))
        assert not on_host(replace(each, tensors=2_000)).startswith("small")
        assert not on_host(replace(each, mode="buffered")).startswith("small")

    def test_the_bus_holds_a_load_that_copies_all_the_while(self) -> None:
        # Busy for 9 s of 10, at 8 / 9 GB/s of 50: 1.7 %.
        slow = gpu_run("ring", "warm", 10.0, stages=stages(read=9.9, h2d=9.0), ring=RingFacts(64, MIB, "torch", 0))
        told = "the bus: copying for 90 % of the load, at 1.7 % of what pinned copies on 1 stream give; "
        assert on_gpu(slow) == told + "larger chunks (--chunk 8MiB)"
        assert on_gpu(replace(slow, mode="per-tensor")) == told + "mode ring copies out of pinned memory"
        fallback = CopyFacts(1, BYTES, 9.0, None, None, BYTES, "the bus was slow, so copies were plain", None)
        assert on_gpu(replace(slow, copies=fallback)) == told + "the bus was slow, so copies were plain"
        unmeasured = on_gpu(slow, within=UNMEASURED)
        assert unmeasured == "the bus: copying for 90 % of the load; fewer bytes (a smaller dtype), or a faster link"

    def test_copies_as_fast_as_the_bus_are_told_to_be(self) -> None:
        # Of 0.2 s, 0.175 s in copies at 8 / 0.175 = 45.7 GB/s of 50; 8 / 0.2 are 80 %.
        each = gpu_run("mapped", "warm", 0.2, stages=stages(h2d=0.175), ring=RingFacts(64, MIB, "torch", 0))
        told = "the bus: copying for 87.5 % of the load, at 91.4 % of what pinned copies on 1 stream give; "
        assert on_gpu(each) == told + "fewer bytes (a smaller dtype), or a faster link"

    def test_reads_hold_a_load_off_the_disk(self) -> None:
        # 80 % of the time in reads at 8 / 8 GB/s, of 2.5: 40 %.
        each = run("direct", "cold", 10.0, stages=stages(read=8.0), direct_bytes=BYTES, reader_streams=4)
        told = "reading from the disk: 80 % of the load, at 40 % of what the disk gives to direct reads; "
        assert on_host(each) == told + "the disk gave most to 8 reads at once, and this was 4 (--streams 8)"
        assert on_host(replace(each, reader_streams=8)).startswith(told + "mode auto with the page cache warmed")
        assert on_host(replace(each, direct_bytes=0)).startswith(told + "mode auto with the page cache warmed")
        auto = on_host(replace(each, direct_bytes=0), by=contender("auto"))
        more = "; the disk gave more when it was measured alone, so look for what else was busy"
        assert auto == told + "the page cache warmed first (coldctl prewarm)" + more
        unmeasured = on_host(replace(each, direct_bytes=0), by=contender("auto"), within=UNMEASURED)
        assert unmeasured == "reading from the disk: 80 % of the load; the page cache warmed first (coldctl prewarm)"

    def test_reads_at_the_limit_are_told_to_be(self) -> None:
        # 60 % of the time in reads at 8 / 3.6 = 2.22 GB/s, of 2.5: 88.8 %.
        each = run("direct", "cold", 6.0, stages=stages(read=3.6), direct_bytes=BYTES, reader_streams=4)
        assert on_host(each, by=contender("auto")) == (
            "reading from the disk: 60 % of the load, at 88.8 % of what the disk gives to direct reads; "
            "a faster disk, or the page cache warmed first (coldctl prewarm)"
        )

    def test_reads_hold_a_load_out_of_the_page_cache(self) -> None:
        told = "reading from the page cache: 80 % of the load, at 40 % of what copying from memory to memory gives; "
        assert on_host(run("buffered", "warm", 2.5, stages=stages(read=2.0))) == told + "mode map copies nothing"

    def test_reads_hold_a_load_onto_a_gpu_only_while_no_copy_is_under_way(self) -> None:
        each = gpu_run("ring", "warm", 10.0, stages=stages(read=9.8, h2d=4.0))
        told = "reading from the page cache: 58 % of the load with no copy under way; "
        assert on_gpu(each) == told + "mode mapped has the device read the page cache itself"
        both = gpu_run("ring", "warm", 10.0, stages=stages(read=9.8, h2d=7.0))
        assert on_gpu(both) == f"not known: 8 % of what copying from memory to memory gives, and {NOTHING}"

    def test_busy_cpus_hold_a_load(self) -> None:
        # 7.2 s of CPU time in 4 s are 1.8 of 2 CPUs.
        each = run("buffered", "warm", 4.0, cpu_seconds=7.2)
        assert on_host(each, cpus=2) == "the CPUs: 1.8 of 2 busy all the while; mode map copies nothing"
        assert on_host(each, cpus=4).startswith("reading from the page cache")
        assert "mode direct, which copies less" in on_host(replace(each, cache="cold"), cpus=2)
        assert on_host(replace(each, cpu_seconds=None), cpus=2).startswith("reading from the page cache")


class TestNothingIsMadeUp:
    def test_what_no_figure_shows_is_not_known(self) -> None:
        each = run("direct", "cold", 7.44, stages=stages(plan=1.0, read=3.0), direct_bytes=BYTES)
        # 8 GB in 7.44 s are 1.0753 GB/s, 43.0 % of 2.5.
        assert on_host(each) == f"not known: 43 % of what the disk gives to direct reads, and {NOTHING}"

    def test_a_peer_has_no_stages(self) -> None:
        each = run("runai", "cold", 8.0, mode=None, stages=stages(touch=0.5))
        told = f"not known: 40 % of what the disk gives to direct reads, {OF_PEER}"
        assert on_host(each, by=peer("runai")) == told

    def test_without_limits_none_is_named(self) -> None:
        each = run("direct", "cold", 8.0, stages=stages(read=1.0))
        told = f"not known: there is no limit to measure it by (disk_direct not measured), and {NOTHING}"
        assert on_host(each, within=UNMEASURED) == told

    def test_start_up_is_told_where_it_takes_longer_than_the_load(self) -> None:
        before = (Stage("import_torch", -2.0, 1.5, 0), Stage("cuda_context", -0.5, 0.5, 0))
        each = gpu_run("mapped", "warm", 0.18, stages=before)
        assert on_gpu(each).startswith(
            "start-up: 2.00 s before the first byte (import torch 1.50 s, the CUDA context 0.50 s), the load 0.18 s; "
            "a process that is kept pays for it once; the load itself: the bus: 88.8 % of"
        )
        assert not on_gpu(gpu_run("mapped", "warm", 2.1, stages=before)).startswith("start-up")

    def test_the_import_of_a_peer_is_part_of_its_start_up(self) -> None:
        before = (Stage("import_torch", -3.0, 1.5, 0), Stage("import_peer", -1.5, 1.25, 0))
        told = on_host(run("runai", "cold", 2.5, mode=None, stages=before), by=peer("runai"))
        assert told.startswith(
            "start-up: 2.75 s before the first byte (import torch 1.50 s, import of the library 1.25 s)"
        )

    @given(
        st.sampled_from(sorted({*HOST_MODES, *DEVICE_MODES} - {"auto"})),
        st.sampled_from(["cold", "warm"]),
        st.booleans(),
        st.floats(0.001, 1000),
        st.dictionaries(
            st.sampled_from(["import_torch", "cuda_context", "plan", "pin", "allocate", "read", "h2d", "verify"]),
            st.floats(0, 1000),
        ),
        st.data(),
    )
    def test_figures_that_were_not_measured_are_in_no_sentence(
        self, mode: str, cache: Any, on_device: bool, seconds: float, took: dict[str, float], data: st.DataObject
    ) -> None:
        """Of a run that has its seconds and stages alone, within limits of which any may be null."""
        rates = [field.name for field in fields(Limits) if field.name.endswith("_per_second")]
        some = {name: data.draw(st.none() | st.floats(1e6, 1e12)) for name in rates}
        bare = replace(
            run(mode, cache, seconds, stages=stages(**took)),
            cpu_seconds=None,
            direct_bytes=None,
            reader_streams=None,
            loaded_seconds=None,
        )
        within = Limits(**some, disk_depth=None, unmeasured={})
        told = bound(bare, contender(mode), within, "cuda" if on_device else "cpu", cpus=2)
        assert "None" not in told
        assert "nan" not in told
        assert "CPUs:" not in told
        for words, names in (
            ("what the disk gives to direct reads", ["disk_direct"]),
            ("what the disk gives through", ["disk_buffered"]),
            ("what copying", ["memcpy"]),
            ("what pinned copies", ["h2d_1", "h2d_2", "h2d_4"]),
        ):
            assert words not in told or any(some[f"{name}_bytes_per_second"] for name in names)
