"""Baselines: read from what bench writes, refused for the right reason, and judged by spreads worked out here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import ColdctlError, InputError, UsageError
from coldctl.jobs.bench.options import BenchOptions
from coldctl.jobs.bench.verdict.baseline import Baseline, read_baseline, require_comparable
from coldctl.jobs.bench.verdict.regressions import other_content, other_machine, regressions, unjudged
from coldctl.report.json import error_document, result_document
from coldctl.results.bench import BenchRun, CacheState, Regression
from tests.bench_results import contender, device_facts, failed_run, gpu_result, host, peer, result, run

RING, DIRECT, THEIRS = contender("ring"), contender("direct"), peer("safetensors")


def rounds(name: str, seconds: Sequence[float], cache: CacheState = "cold") -> list[BenchRun]:
    return [run(name, cache, each, round=number) for number, each in enumerate(seconds)]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "before.json"
        path.write_text(text)
        return os.fspath(path)

    return write


def baseline_of(written: Callable[[str], str], runs: list[BenchRun]) -> Baseline:
    return read_baseline(written(result_document("bench", result(runs=runs), ok=True)))


Edit = Callable[[dict[str, Any]], object]


def edited(edit: Edit) -> str:
    document = json.loads(result_document("bench", result(), ok=True))
    edit(document)
    return json.dumps(document)


def test_what_bench_wrote_is_read(written: Callable[[str], str]) -> None:
    before = read_baseline(written(result_document("bench", gpu_result(), ok=False)))
    assert (before.device, before.bytes, before.tensors) == ("cuda:0", 8_000_000_000, 291)
    assert before.seconds_by_round(("ring", "cold")) == {0: 4.0}
    assert before.seconds_by_round(("runai", "cold")) == {}
    assert before.ways() == [
        (name, cache) for cache in ("cold", "warm") for name in ("ring", "ring, 4 streams", "runai")
    ]


def test_keys_that_a_newer_version_added_are_passed_over(written: Callable[[str], str]) -> None:
    def add(document: dict[str, Any]) -> None:
        document["later"] = [{}]
        document["runs"][0]["later"] = document["host"]["later"] = 1

    assert read_baseline(written(edited(add))) == read_baseline(written(edited(lambda _: None)))


def set_run(**changes: Any) -> Edit:
    return lambda document: document["runs"][0].update(changes)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda d: d.update(schema="coldctl.bench/2"), "its schema is 'coldctl.bench/2', expected 'coldctl.bench/1'"),
        (lambda d: d.update(schema="coldctl.verify/1"), "its schema is 'coldctl.verify/1'"),
        (lambda d: d.pop("schema"), "its schema is ''"),
        (lambda d: d.update(schema=1), "$.schema"),
        (lambda d: d.update(command="verify"), "its command is 'verify', expected 'bench'"),
        (lambda d: d.update(command=None), "$.command"),
        (lambda d: d.pop("runs"), "missing required field `runs`"),
        (lambda d: d.pop("host"), "missing required field `host`"),
        (lambda d: d.update(host=None), "$.host"),
        (lambda d: d.pop("verify"), "missing required field `verify`"),
        (lambda d: d.pop("first_layers"), "missing required field `first_layers`"),
        (lambda d: d.pop("memory_fraction"), "missing required field `memory_fraction`"),
        (lambda d: d.pop("max_split_size_bytes"), "missing required field `max_split_size_bytes`"),
        (lambda d: d.update(verify=None), "$.verify"),
        (lambda d: d.update(first_layers=-1), "$.first_layers"),
        (lambda d: d.update(memory_fraction="90%"), "$.memory_fraction"),
        (lambda d: d["host"].pop("kernel"), "missing required field `kernel`"),
        (lambda d: d["host"].update(versions={"torch": 2}), "$.host.versions"),
        (lambda d: d.update(runs={}), "$.runs"),
        (lambda d: d.update(bytes=-1), "$.bytes"),
        (lambda d: d.update(bytes=1.5), "$.bytes"),
        (lambda d: d.update(tensors=10**30), "$.tensors"),
        (set_run(seconds=-1.0), "$.runs[0].seconds"),
        (set_run(seconds=0), "$.runs[0].seconds"),
        (set_run(seconds=5e-324), "$.runs[0].seconds"),
        (set_run(seconds=1e300), "$.runs[0].seconds"),
        (set_run(seconds="4.0"), "$.runs[0].seconds"),
        (set_run(seconds=True), "$.runs[0].seconds"),
        (set_run(seconds=float("nan")), "malformed"),
        (set_run(seconds=float("inf")), "malformed"),
        (set_run(cache="tepid"), "$.runs[0].cache"),
        (set_run(contender=None), "$.runs[0].contender"),
        (set_run(round=-1), "$.runs[0].round"),
        (lambda d: d["runs"].append(d["runs"][0]), "it lists a run twice"),
        (
            lambda d: d.update(runs=[{**d["runs"][0], "round": n} for n in range(10_001)]),
            "it has 10,001 rounds of one contender, 10,000 at most are read",
        ),
    ],
)
def test_what_is_no_baseline_is_refused_with_the_reason(written: Callable[[str], str], edit: Edit, why: str) -> None:
    path = written(edited(edit))
    with pytest.raises(InputError) as refused:
        read_baseline(path)
    assert refused.value.exit_code == 4
    assert refused.value.message.startswith(f"{path} is no baseline: ")
    assert why in refused.value.message
    assert refused.value.hint == "write one with coldctl bench --json"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "median 4.0 s",
        "[" * 100_000,
        '{"schema": "coldctl.bench/1", "runs": ' + "[" * 100_000,
        '{"schema": 1e999}',
        result_document("bench", result(), ok=True) * 2,
        error_document("bench", code="input", exit_code=4, message="no such file", hint=None),
    ],
)
def test_what_is_no_such_document_is_refused(written: Callable[[str], str], text: str) -> None:
    with pytest.raises(InputError, match="is no baseline"):
        read_baseline(written(text))


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_bytes(b'{"schema": "coldctl.bench/1\xff"}')
    with pytest.raises(InputError, match="is no baseline"):
        read_baseline(os.fspath(path))


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "it is a named pipe"), (".", "it is a folder"), ("absent", "No such file")):
        with pytest.raises(ColdctlError, match=why) as refused:
            read_baseline(os.fspath(tmp_path / name))
        assert refused.value.exit_code == 4


def test_a_file_larger_than_any_result_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.touch()
    os.truncate(path, (256 << 20) + 1)
    with pytest.raises(InputError, match="it is over 268,435,456 bytes"):
        read_baseline(os.fspath(path))


WAYS: list[tuple[str, CacheState]] = [("buffered", "cold"), ("newer", "warm")]


OURS = BenchOptions("/data/llama", device="cpu")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nbytes": 8_000_000_001}, "8,000,000,000 bytes in 291 tensors, this one has 8,000,000,001 bytes in 291"),
        ({"tensors": 290}, "of another checkpoint"),
        ({"options": replace(OURS, device="cuda:0")}, "the baseline was loaded to 'cpu', this is 'cuda:0'"),
        ({"ways": [("newer", "cold")]}, "has none of the ways"),
    ],
)
def test_a_baseline_of_something_else_is_a_wrong_option(
    written: Callable[[str], str], changes: dict[str, Any], why: str
) -> None:
    before = read_baseline(written(result_document("bench", result(), ok=True)))
    fitting: dict[str, Any] = {"options": OURS, "gpu": None, "nbytes": 8_000_000_000, "tensors": 291, "ways": WAYS}
    require_comparable(before, **fitting)
    with pytest.raises(UsageError) as refused:
        require_comparable(before, **{**fitting, **changes})
    assert why in refused.value.message


def test_a_baseline_of_another_gpu_is_a_wrong_option_and_of_its_twin_is_not(written: Callable[[str], str]) -> None:
    before = read_baseline(written(result_document("bench", gpu_result(), ok=True)))
    fitting: dict[str, Any] = {"nbytes": 8_000_000_000, "tensors": 291, "ways": [("ring", "cold")]}
    require_comparable(before, replace(OURS, device="cuda:1"), gpu="NVIDIA H200", **fitting)
    require_comparable(before, replace(OURS, device="cuda:1"), gpu=None, **fitting)
    with pytest.raises(UsageError, match="loaded to a 'NVIDIA H200', this is a 'NVIDIA H100'"):
        require_comparable(before, replace(OURS, device="cuda:0"), gpu="NVIDIA H100", **fitting)


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        ({"verify": True}, {}, "verify True there, not asked for here"),
        ({}, {"verify": True, "first_layers": 2}, "verify not asked for there, True here; first_layers not asked for"),
        ({"first_layers": 1}, {"first_layers": 2}, "first_layers 1 there, 2 here"),
        ({"memory_fraction": 0.9}, {"memory_fraction": 0.5}, "memory_fraction 0.9 there, 0.5 here"),
        ({}, {"max_split_size_bytes": 64 << 20}, "max_split_size_bytes not asked for there, 67108864 here"),
    ],
)
def test_a_baseline_of_loads_that_did_something_else_is_a_wrong_option(
    written: Callable[[str], str], there: dict[str, Any], here: dict[str, Any], why: str
) -> None:
    before = read_baseline(written(result_document("bench", gpu_result(**there), ok=True)))
    fitting: dict[str, Any] = {"gpu": None, "nbytes": 8_000_000_000, "tensors": 291, "ways": [("ring", "cold")]}
    require_comparable(before, BenchOptions("/data/llama", device="cuda:0", **there), **fitting)
    with pytest.raises(UsageError) as refused:
        require_comparable(before, BenchOptions("/data/llama", device="cuda:0", **here), **fitting)
    assert refused.value.message.startswith(f"the baseline was made with other options: {why}")
    assert refused.value.exit_code == 2


def test_the_gpu_of_a_machine_does_not_matter_to_a_load_into_memory(written: Callable[[str], str]) -> None:
    before = read_baseline(written(result_document("bench", result(host=host(device=device_facts())), ok=True)))
    require_comparable(before, OURS, gpu="NVIDIA H100", nbytes=8_000_000_000, tensors=291, ways=WAYS)


BEFORE = [1.0, 1.02, 0.98, 1.04, 0.96]
# The 95 % bounds lie within those of all pairs: least now / greatest before, and greatest now / least before.


def judged(written: Callable[[str], str], seconds: Sequence[float], max_regression: float = 0.1) -> Regression:
    before = baseline_of(written, rounds("ring", BEFORE))
    (found,) = regressions(before, rounds("ring", seconds), [RING], max_regression)
    assert (found.contender, found.cache) == ("ring", "cold")
    assert found.ratio == pytest.approx(sorted(seconds)[len(seconds) // 2] / 1.0)
    assert min(seconds) / 1.04 <= found.low <= found.ratio <= found.high <= max(seconds) / 0.96
    return found


def test_slower_beyond_the_spread_is_a_regression(written: Callable[[str], str]) -> None:
    # Even 1.2 / 1.04 = 1.15 is over 1.1.
    found = judged(written, [1.2, 1.3, 1.25, 1.22, 1.28])
    assert found.regressed
    assert found.reason == "even the lower bound is over the 10 % that are allowed"
    # The median is 1.25 times the baseline's.
    allowed = judged(written, [1.2, 1.3, 1.25, 1.22, 1.28], max_regression=0.3)
    assert not allowed.regressed
    assert allowed.reason == "slower, within the 30 % that are allowed"


def test_a_median_that_is_slower_within_a_wide_spread_is_no_regression(written: Callable[[str], str]) -> None:
    # The bounds reach down to runs as fast as the baseline: three of five draws hit the least two with 32 %.
    found = judged(written, [0.9, 0.95, 1.3, 1.6, 2.0])
    assert not found.regressed
    assert found.low < 1.1 < found.ratio
    assert found.reason == "its median is over the 10 % that are allowed, but the spread does not bear it out"


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ([0.5, 0.52, 0.51, 0.5, 0.49], "faster"),
        (BEFORE, "not apart from the baseline"),
        ([1.05, 1.06, 1.07, 1.08, 1.09], "slower, within the 10 % that are allowed"),
    ],
)
def test_what_is_no_regression_says_what_it_is(
    written: Callable[[str], str], seconds: Sequence[float], reason: str
) -> None:
    found = judged(written, seconds)
    assert (found.regressed, found.reason) == (False, reason)


def test_a_regression_of_nothing_allowed_is_any_that_the_spread_bears_out(written: Callable[[str], str]) -> None:
    assert judged(written, [1.05, 1.06, 1.07, 1.08, 1.09], max_regression=0.0).regressed
    assert not judged(written, BEFORE, max_regression=0.0).regressed


def test_each_cache_state_is_judged_by_itself(written: Callable[[str], str]) -> None:
    before = baseline_of(written, [*rounds("ring", BEFORE), *rounds("ring", BEFORE, "warm")])
    now = [*rounds("ring", BEFORE), *rounds("ring", [2.0] * 5, "warm")]
    found = regressions(before, now, [RING], 0.1)
    assert [(each.cache, each.regressed) for each in found] == [("cold", False), ("warm", True)]
    assert unjudged(before, now, [RING]) == []


def test_a_peer_that_got_slower_is_told_and_no_regression(written: Callable[[str], str]) -> None:
    before = baseline_of(written, [*rounds("ring", BEFORE), *rounds("safetensors", BEFORE)])
    now = [*rounds("ring", [2.0] * 5), *rounds("safetensors", [2.0] * 5)]
    ours, theirs = regressions(before, now, [RING, THEIRS], 0.1)
    assert (ours.contender, ours.regressed) == ("ring", True)
    assert (theirs.contender, theirs.regressed) == ("safetensors", False)
    told = "even the lower bound is over the 10 % that are allowed, of a peer: this fails nothing"
    assert theirs.reason == told


def test_few_rounds_on_either_side_are_no_regression_however_slow(written: Callable[[str], str]) -> None:
    slow = [9.0] * 5
    for before, now, counts in ((BEFORE[:4], slow, "5 here and 4"), (BEFORE, slow[:1], "1 here and 5")):
        baseline, runs = baseline_of(written, rounds("ring", before)), rounds("ring", now)
        assert regressions(baseline, runs, [RING], 0.1) == []
        told = f"ring (cold) is not judged by the baseline: it takes 5 that loaded, not {counts} in the baseline"
        assert unjudged(baseline, runs, [RING]) == [told]


def test_ways_on_one_side_only_are_named(written: Callable[[str], str]) -> None:
    before = baseline_of(written, [*rounds("ring", BEFORE), *rounds("mapped", BEFORE, "warm")])
    now = [*rounds("direct", BEFORE), *rounds("ring", BEFORE), *rounds("ring", BEFORE, "warm")]
    assert [each.contender for each in regressions(before, now, [DIRECT, RING], 0.1)] == ["ring"]
    assert unjudged(before, now, [DIRECT, RING]) == [
        "not in the baseline: direct (cold); ring (warm)",
        "in the baseline only: mapped (warm)",
    ]


def test_a_way_that_failed_is_not_judged_and_named(written: Callable[[str], str]) -> None:
    before = baseline_of(written, [*rounds("ring", BEFORE), *rounds("safetensors", BEFORE)])
    now = [*rounds("safetensors", BEFORE), *(failed_run("ring", round=n) for n in range(5))]
    assert [each.contender for each in regressions(before, now, [RING, THEIRS], 0.1)] == ["safetensors"]
    told = "ring (cold) is not judged by the baseline: it takes 5 that loaded, not 0 here and 5 in the baseline"
    assert unjudged(before, now, [RING, THEIRS]) == [told]


def test_another_machine_is_told_by_what_differs(written: Callable[[str], str]) -> None:
    before = read_baseline(written(result_document("bench", result(), ok=True)))
    assert other_machine(before, host()) == []
    other = replace(host(), kernel="6.19.0", virtual="KVM", filesystem="xfs", block_device=None)
    other = replace(other, versions={**host().versions, "torch": "2.14.0", "runai-model-streamer": "0.17.1"})
    assert other_machine(before, other) == [
        "the baseline was not measured on the same: kernel 6.18.5 there, 6.19.0 here; virtual none there, KVM here; "
        "filesystem ext4 there, xfs here; block device nvme0n1 there, none here; torch 2.13.0 there, 2.14.0 here"
    ]


def test_other_content_of_the_same_size_is_told(written: Callable[[str], str]) -> None:
    before = baseline_of(written, [run("ring", content_sum="aa"), failed_run("direct", content_sum="bb")])
    assert other_content(before, [run("ring", content_sum="aa")]) == []
    assert other_content(before, [run("ring", content_sum=None)]) == []
    told = "the baseline is of a checkpoint with as many bytes in as many tensors, and other content"
    assert other_content(before, [run("ring", content_sum="bb")]) == [told]


def test_another_driver_is_told(written: Callable[[str], str]) -> None:
    before = read_baseline(written(result_document("bench", gpu_result(), ok=True)))
    now = host(device=device_facts(driver="575.57"))
    assert other_machine(before, now) == ["the baseline was not measured on the same: driver 570.86 there, 575.57 here"]
