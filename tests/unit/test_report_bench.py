"""The text of a benchmark: every figure that was measured, none that was not, and nothing from a file as it is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from coldctl.report.text.bench import render
from coldctl.report.text.style import PLAIN, Style
from coldctl.results.bench import BenchResult, BenchRun, Best, CacheState, Comparison, HostMemory
from coldctl.results.load import CopyFacts, Stage
from tests import bench_results as make

MIB = 1 << 20
GIB = 1 << 30
HOSTILE = "\x1b[2J\u202e\n\udcff" + "x" * 500


def lines_of(result: BenchResult, style: Style = PLAIN) -> list[str]:
    return render(result, style).splitlines()


def of_run(run: BenchRun, **changes: Any) -> list[str]:
    """The lines of a result whose only run is this one."""
    summary = make.summary(run.contender, run.cache, [4.0])
    contenders = [make.contender(run.contender)]
    rest = {"bests": [], "comparisons": [], "timelines": [], "contenders": contenders}
    return lines_of(make.result(runs=[run], summaries=[summary], **{**rest, **changes}))


def test_the_whole_report_of_a_host() -> None:
    """8e9 bytes are 7.45 GiB; in 4 s 2 GB/s, 80 % of 2.5; read took 3.9 s, so 2.05 GB/s."""
    assert lines_of(make.result())[:22] == [
        "/data/llama: 7.5 GiB, 291 tensors in 4 files, onto cpu, 5 rounds in 3 min 20 s",
        "  ext4 on nvme0n1, Xeon 8480C (16 CPUs, 128.0 GiB), kernel 6.18.5, load 0.50",
        "",
        "contender          cache  median  [min - max]             rate  of its limit",
        "buffered           cold   4.00 s  [3.90 s - 4.20 s]  2.00 GB/s  80 % of disk, direct",
        "direct             cold   4.40 s  [4.30 s - 4.60 s]  1.82 GB/s  72.7 % of disk, direct",
        "safetensors 0.6.2  cold   5.00 s  [4.90 s - 5.20 s]  1.60 GB/s  64 % of disk, direct",
        "buffered           warm   1.00 s  [0.90 s - 1.20 s]  8.00 GB/s  80 % of memcpy",
        "safetensors 0.6.2  warm   1.00 s  [0.90 s - 1.20 s]  8.00 GB/s  80 % of memcpy",
        "direct             warm   4.40 s  [4.30 s - 4.60 s]  1.82 GB/s  18.1 % of memcpy",
        "",
        "cold",
        "  coldctl's best: buffered: the spreads do not touch",
        "  buffered: 1.25 times as fast as safetensors (95 %: 1.20 to 1.30, round by round)",
        "  buffered, median run, 0 % in memory before, 8 readers, 1.00 s of CPU",
        "    stage               start    took    bytes       rate  (stages overlap, and need not add up)",
        "    import torch      -2.00 s  1.50 s",
        "    headers and plan     0 ms   20 ms",
        "    allocate            20 ms   80 ms  7.5 GiB",
        "    read               0.10 s  3.90 s  7.5 GiB  2.05 GB/s",
        "  bound: held by the disk: nothing to gain",
        "",
    ]


def test_a_blank_line_stands_between_blocks_and_nowhere_else() -> None:
    result = make.gpu_result(notes=["one", "two"], regressions=[make.regression()])
    blocks = [block.splitlines() for block in render(result, PLAIN).split("\n\n")]
    assert [block[0].split(":")[0].split("  ")[0] for block in blocks] == [
        *("/data/llama", "contender", "cold", "warm", "anonymous memory of the process (page cache not counted)"),
        *("limits", "note", "against the baseline"),
    ]
    assert all(all(block) for block in blocks)


def test_rows_of_a_cache_state_stand_in_the_order_of_their_medians_and_failed_ones_last() -> None:
    medians = {"slow": 9.0, "fast": 3.0, "middle": 5.0}
    summaries = [make.failed_summary("broken", "cold"), *(make.summary(n, "cold", [s]) for n, s in medians.items())]
    lines = lines_of(make.result(summaries=[*summaries, make.summary("warm one", "warm", [1.0])]))
    at = next(number for number, line in enumerate(lines) if line.startswith("contender"))
    assert [line.split("  ")[0] for line in lines[at + 1 : at + 6]] == ["fast", "middle", "slow", "broken", "warm one"]


def test_one_run_has_no_range() -> None:
    lines = lines_of(make.result(summaries=[make.summary("buffered", "cold", [1.17])]))
    assert lines[4] == "buffered   cold   1.17 s  1 run        6.84 GB/s  273.5 % of disk, direct"


def test_where_residency_was_sampled_its_bound_stands_beside_it() -> None:
    """1,887,437 bytes are 1.8 MiB. A bound of 0 is an exact answer, and one that is null goes with no share at all."""
    told = [
        next(line for line in of_run(make.run(**changes)) if "in memory before" in line)
        for changes in (
            {"resident_bound_bytes": 1_887_437},
            {"resident_bound_bytes": 0},
            {"resident_before_bytes": None, "resident_bound_bytes": None},
        )
    ]
    assert [line.split(", ", 2)[2].removesuffix(", 8 readers, 1.00 s of CPU") for line in told] == [
        "0 % in memory before (sampled, within 1.8 MiB)",
        "0 % in memory before",
        "unknown share in memory before",
    ]


def test_what_is_in_memory_is_a_share_of_the_files_and_not_of_their_tensors() -> None:
    """Headers are in the page cache as well: those of 90,000 small tensors are larger than all of these."""
    lines = lines_of(
        make.result(bytes=1_440_000, file_bytes=11_091_122, runs=[make.run(resident_before_bytes=11_091_122)])
    )
    assert any(", 100 % in memory before," in line for line in lines)


def test_the_limits_are_listed_and_those_that_were_not_measured_share_a_line_with_their_reason() -> None:
    lines = lines_of(make.result())
    assert lines[lines.index("limits") :] == [
        "limits",
        "  disk, direct     2.50 GB/s  at depth 8",
        "  disk, buffered   2.20 GB/s",
        "  memcpy          10.00 GB/s",
        "  not measured: H2D, 1 stream; H2D, 2 streams; H2D, 4 streams: the device is cpu",
    ]


def test_the_stages_of_a_gpu_and_what_was_ready_when() -> None:
    """3.8 s for 8e9 bytes are 2.11 GB/s."""
    lines = lines_of(make.gpu_result())
    assert lines[2] == "  NVIDIA H200, 140.0 GiB, driver 570.86, CUDA 12.8, PCIe 5 x16"
    begin = lines.index("cold") + 2
    assert lines[begin : begin + 13] == [
        "  ring, median run, 0 % in memory before, 8 readers, 1.00 s of CPU: pinned memory can be had",
        "    stage               start    took     bytes       rate  (stages overlap, and need not add up)",
        "    import torch      -4.00 s  3.00 s",
        "    CUDA context      -1.00 s  0.50 s",
        "    headers and plan     0 ms   20 ms",
        "    allocate            20 ms   10 ms   7.5 GiB",
        "    pin                 30 ms   70 ms  64.0 MiB",
        "    read               0.10 s  3.80 s   7.5 GiB  2.11 GB/s",
        "    H2D                0.20 s  3.80 s   7.5 GiB  2.11 GB/s",
        "  bound: held by the disk: nothing to gain",
        "  ready: first layers 0.50 s; attention of the first layer 0.40 s, median 0.80 s, of the last 1.20 s",
        "  device memory: 139.0 GiB free before, 131.0 GiB after, of 140.0 GiB",
        "  torch: peak 7.5 GiB allocated, 8.0 GiB reserved; fragmentation 5 %; expandable_segments:False",
    ]


@pytest.mark.parametrize("result", [make.result(), make.gpu_result()])
def test_a_report_fits_a_screen(result: BenchResult) -> None:
    lines = lines_of(result)
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 55


def test_a_contender_that_failed_is_a_row_with_its_reason() -> None:
    assert "runai 0.15.0     cold   failed  1 of 1                  no kernel image" in lines_of(make.gpu_result())


def test_runs_that_failed_stand_below_those_that_loaded() -> None:
    some = make.summary("buffered", "cold", [4.0, 4.0, 4.0], failed=2, error="it crashed")
    lines = lines_of(make.result(summaries=[some]))
    assert lines[4:6] == [
        "buffered   cold   4.00 s  [4.00 s - 4.00 s]  2.00 GB/s  80 % of disk, direct",
        "buffered   cold   failed  2 of 5                        it crashed",
    ]


def test_percentiles_have_columns_only_where_there_are_some() -> None:
    assert "P90" not in render(make.result(), PLAIN)
    known = make.summary("buffered", "cold", [4.0, 4.0], p90_seconds=4.25)
    unknown = make.summary("direct", "cold", [4.0, 4.0])
    assert lines_of(make.result(summaries=[known, unknown]))[3:6] == [
        "contender  cache  median  [min - max]                 P90       rate  of its limit",
        "buffered   cold   4.00 s  [4.00 s - 4.00 s]        4.25 s  2.00 GB/s  80 % of disk, direct",
        "direct     cold   4.00 s  [4.00 s - 4.00 s]  not measured  2.00 GB/s  80 % of disk, direct",
    ]


def test_a_best_that_the_spreads_do_not_allow_is_not_named() -> None:
    lines = lines_of(make.result(bests=[Best("cold", None, "the spreads of buffered and direct overlap")]))
    assert "  coldctl's best: not named: the spreads of buffered and direct overlap" in lines


def test_without_a_best_the_detail_is_of_the_lowest_median() -> None:
    slow, fast = make.summary("slow", "cold", [9.0]), make.summary("fast", "cold", [3.0])
    peer = make.summary("peer", "cold", [1.0])
    result = make.result(
        bests=[Best("cold", None, "one round does not tell")],
        contenders=[make.contender("slow"), make.contender("fast"), make.peer("peer")],
        summaries=[slow, fast, peer],
        runs=[make.run("slow", "cold", 9.0), make.run("fast", "cold", 3.0), make.run("peer", "cold", 1.0)],
        timelines=[],
    )
    assert sum("median run" in line for line in lines_of(result)) == 1
    assert "  fast, median run, 0 % in memory before" in render(result, PLAIN)


def test_each_peer_has_a_line_with_its_ratio_and_bounds() -> None:
    ratios = [
        Comparison("cold", "buffered", "torch", 1.084, 0.994, 1.151),
        Comparison("warm", "buffered", "x", 2, 1, 3),
    ]
    lines = lines_of(make.result(comparisons=ratios, summaries=[make.summary("buffered", "cold", [4.0])]))
    told = "  buffered: 1.08 times as fast as torch (95 %: 0.99 to 1.15, round by round)"
    assert [line for line in lines if "times as fast" in line] == [told]


def test_a_peer_whose_bounds_lie_under_one_was_faster_and_is_told_in_yellow() -> None:
    """1 / 0.8 is 1.25, 1 / 0.96 is 1.04, and 1 / 0.64 is 1.56."""
    beaten = Comparison("cold", "buffered", "torch", 0.8, 0.64, 0.96)
    doubtful = Comparison("cold", "buffered", "runai", 0.8, 0.64, 1.0)
    result = make.result(comparisons=[beaten, doubtful], summaries=[make.summary("buffered", "cold", [4.0])])
    assert [line for line in lines_of(result) if "times as fast" in line] == [
        "  buffered: 0.80 times as fast as torch (95 %: 0.64 to 0.96, round by round): "
        "torch was faster, 1.25 times as fast (95 %: 1.04 to 1.56)",
        "  buffered: 0.80 times as fast as runai (95 %: 0.64 to 1.00, round by round)",
    ]
    assert "\x1b[33mtorch was faster\x1b[0m" in render(result, Style(colour=True))


def shares_of(result: BenchResult) -> list[str]:
    """The end of each row of the loads, and the lines below them up to the blank one."""
    lines = lines_of(result)
    at = next(number for number, line in enumerate(lines) if line.startswith("contender"))
    return [line.split("  ")[-1] for line in lines[at + 1 : lines.index("", at)]]


NONE_APPLIES = "-: no limit applies: a mapping of warm files copies nothing, and what a peer does is not known"


def test_where_no_limit_applies_there_is_a_dash_and_one_line_that_says_why() -> None:
    names = ("map", "safetensors")
    result = make.result(
        contenders=[make.contender("map"), make.peer("safetensors")],
        runs=[make.run("map", "warm"), make.run("safetensors", "warm", mode=None)],
        summaries=[make.summary(name, "warm", [4.0], limit=None, limit_share=None) for name in names],
        bests=[],
        comparisons=[],
        timelines=[],
    )
    assert shares_of(result) == ["-", "-", NONE_APPLIES]


@pytest.mark.parametrize(("mode", "cache"), [("buffered", "warm"), ("map", "cold")])
def test_a_limit_that_applies_and_was_not_measured_is_called_so(mode: str, cache: CacheState) -> None:
    result = make.result(
        contenders=[make.contender(mode)],
        runs=[make.run(mode, cache)],
        summaries=[make.summary(mode, cache, [4.0], limit=None, limit_share=None)],
        bests=[],
        comparisons=[],
        timelines=[],
    )
    assert shares_of(result) == ["not measured"]


def test_whatever_goes_onto_a_gpu_has_a_limit() -> None:
    summary = make.summary("runai", "warm", [4.0], limit=None, limit_share=None)
    run = make.gpu_run("runai", "warm", mode=None)
    assert shares_of(make.gpu_result(runs=[run], summaries=[summary], bests=[], timelines=[])) == ["not measured"]


def test_the_stages_are_of_the_run_at_the_median() -> None:
    runs = [make.run(seconds=seconds, cpu_seconds=seconds) for seconds in (9.0, 5.0, 1.0)]
    lines = lines_of(make.result(runs=runs, summaries=[make.summary("buffered", "cold", [9.0, 5.0, 1.0])]))
    assert "  buffered, median run, 0 % in memory before, 8 readers, 5.00 s of CPU" in lines


def test_a_run_says_its_way_and_why_and_what_it_fell_back_to() -> None:
    copies = CopyFacts(1, make.BYTES, 2.0, 4e9, None, 7, "the device refused events", None)
    run = make.run(
        "auto", mode="direct", reason="the files are cold", direct_bytes=2 * GIB, copies=copies, notes=("slow",)
    )
    lines = of_run(run)
    at = lines.index("cold") + 1
    assert lines[at : at + 3] == [
        "  auto, median run, mode direct, 0 % in memory before, 8 readers, 2.0 GiB past the page cache, "
        "1.00 s of CPU: the files are cold",
        "  plain copies: the device refused events",
        "  note: slow",
    ]


def test_fragmentation_of_15_per_cent_and_more_is_an_alarm_in_red() -> None:
    memory = make.device_memory(fragmentation_share=0.1525, fragmented=True, reserved_bytes=4 * GIB)
    run = make.gpu_run("ring", device_memory=memory)
    summaries = [make.summary("ring", "cold", [4.0])]
    alarm = "fragmentation 15.2 % of 4.0 GiB: 15 % is too much"
    result = make.gpu_result(runs=[run], summaries=summaries)
    assert f"reserved; {alarm}; expandable" in render(result, PLAIN)
    assert f"reserved; \x1b[31m{alarm}\x1b[0m; expandable" in render(result, Style(colour=True))


def test_the_peak_of_memory_is_told_of_the_process_and_not_as_what_the_load_took() -> None:
    """An import that took 40 MiB for a while makes the same peak as a load that does."""
    lines = of_run(make.run(host_memory=HostMemory(140 * MIB, 100 * MIB)))
    at = lines.index("anonymous memory of the process (page cache not counted)")
    assert lines[at + 1] == ("  peak 140.0 MiB, the highest of all runs of the leading ways, 100.0 MiB before the load")
    assert not any("host memory" in line.lower() or " 40.0 MiB" in line for line in lines)


def test_the_peak_is_the_highest_of_all_runs_of_the_leading_ways_and_not_of_the_median_run() -> None:
    peaks = {("buffered", 4.0): 200, ("buffered", 5.0): 300, ("direct", 9.0): 900, ("safetensors", 1.0): 800}
    runs = [
        make.run(name, "cold", seconds, host_memory=HostMemory(peak * MIB, 100 * MIB))
        for (name, seconds), peak in peaks.items()
    ]
    seconds = {"buffered": [4.0, 5.0], "direct": [9.0], "safetensors": [1.0]}
    result = make.result(runs=runs, summaries=[make.summary(name, "cold", each) for name, each in seconds.items()])
    assert "\n  peak 300.0 MiB, the highest" in render(result, PLAIN)


def test_a_baseline_ends_in_a_verdict() -> None:
    held = make.regression()
    slower = make.regression("direct", "warm", ratio=1.4, low=1.2, high=1.5, regressed=True, reason="beyond 10 %")
    assert lines_of(make.result(regressions=[held, slower]))[-4:] == [
        "against the baseline",
        "  buffered  cold  takes 1.02 times as long (95 %: 0.97 to 1.08)  held: within what is allowed (10 %)",
        "  direct    warm  takes 1.40 times as long (95 %: 1.20 to 1.50)  regressed: beyond 10 %",
        "1 regression",
    ]
    assert lines_of(make.result(regressions=[held]))[-1] == "no regression"
    told = "no way could be judged against the baseline: see the notes"
    assert lines_of(make.result(regressions=[]))[-1] == told
    assert "baseline" not in render(make.result(), PLAIN)


def test_notes_come_before_the_verdict() -> None:
    lines = lines_of(make.result(notes=["tensorizer is not installed"], regressions=[make.regression()]))
    assert lines[-5:-3] == ["note: tensorizer is not installed", ""]


def test_where_nothing_loaded_that_is_all_there_is_to_say() -> None:
    summaries = [make.failed_summary("buffered", "cold", 5, "no space")]
    result = make.result(
        runs=[make.failed_run("buffered")],
        summaries=summaries,
        bests=[Best("cold", None, "none loaded")],
        comparisons=[],
    )
    lines = lines_of(result)
    assert lines[2:9] == [
        "",
        "contender  cache  median  [min - max]  rate  of its limit",
        "buffered   cold   failed  5 of 5             no space",
        "",
        "cold",
        "  coldctl's best: not named: none loaded",
        "  none of coldctl's own ways loaded",
    ]


def test_what_was_not_measured_is_left_out_or_called_so_and_never_a_number() -> None:
    bare = make.run(
        cpu_seconds=None,
        resident_before_bytes=None,
        stages=(),
        reader_streams=None,
        direct_bytes=None,
        host_memory=None,
    )
    unknown = {f"{field}_bytes_per_second": None for field in ("disk_direct", "disk_buffered", "memcpy")}
    host = make.host(memory_bytes=None, load_average=None, block_device=None)
    device = make.device_facts(driver=None, cuda=None, memory_bytes=None, pcie_generation=None, pcie_width=None)
    summary = make.summary("buffered", "cold", [4.0], bytes_per_second=None, limit=None, limit_share=None, bound=None)
    result = make.result(
        runs=[bare],
        summaries=[summary],
        bests=[],
        comparisons=[],
        timelines=[],
        limits=make.limits(**unknown, disk_depth=None, unmeasured={}),
        host=replace(host, device=device),
    )
    assert lines_of(result)[1:] == [
        "  ext4, Xeon 8480C (16 CPUs), kernel 6.18.5",
        "  NVIDIA H200",
        "",
        "contender  cache  median  [min - max]          rate  of its limit",
        "buffered   cold   4.00 s  1 run        not measured  not measured",
        "",
        "cold",
        "  buffered, median run, unknown share in memory before",
        "  stages: not measured",
        "",
        "limits",
        "  not measured: disk, direct; disk, buffered; memcpy; H2D, 1 stream; H2D, 2 streams; H2D, 4 streams: "
        "no reason given",
    ]


def test_a_hypervisor_is_named() -> None:
    assert "kernel 6.18.5, virtual (KVM), load" in lines_of(make.result(host=make.host(virtual="KVM")))[1]


def test_stages_that_are_not_known_here_keep_their_name() -> None:
    lines = of_run(make.run(stages=(Stage("touch", 1.0, 2.0, make.BYTES), Stage("verify", 3.0, 0.0, 5))))
    at = next(number for number, line in enumerate(lines) if line.startswith("    stage"))
    assert lines[at + 1 : at + 3] == [
        "    touch   1.00 s  2.00 s  7.5 GiB  4.00 GB/s",
        "    verify  3.00 s    0 ms      5 B",
    ]


def _hostile(value: Any) -> Any:
    """A copy of a result's part in which every free text is hostile; cache states and kinds are not free."""
    if isinstance(value, str):
        return value if value in ("cold", "warm", "coldctl", "peer", "import_torch") else HOSTILE
    if isinstance(value, (list, tuple)):
        return type(value)(map(_hostile, value))
    if isinstance(value, dict):
        return {key: _hostile(each) for key, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{field.name: _hostile(getattr(value, field.name)) for field in fields(value)})
    return value


def test_nothing_reaches_the_terminal_as_a_file_or_a_driver_spelt_it() -> None:
    notes = make.gpu_run(notes=("x",), copies=CopyFacts(1, 1, 1.0, 1.0, None, 1, "x", None), error=None)
    result = make.gpu_result(
        notes=["x"],
        bests=[Best("cold", "x", "x")],
        comparisons=[Comparison("cold", "x", "x", 1, 1, 1)],
        regressions=[make.regression()],
        host=make.host(virtual="x", device=make.device_facts()),
        limits=make.limits(),
        runs=[replace(notes, error=None)],
    )
    text = render(_hostile(result), PLAIN)
    assert all(line.isprintable() for line in text.split("\n"))
    assert "x" * 130 in text  # a message keeps its length, a name does not
    assert max(len(line) for line in text.split("\n") if "4.00 s  1 run" in line) < 200
