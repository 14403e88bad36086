"""`coldctl bench` from its command line: real loads of a small checkpoint, and what its exit code means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coldctl.cli.bench import _exit_code
from coldctl.report.bench_words import STAGES
from coldctl.results.bench import BenchResult
from tests.bench_results import contender, failed_summary, gpu_result, peer, regression, result, summary
from tests.cli.process import Run, run_python
from tests.filesystems import tmpfs
from tests.loads import layer
from tests.tiny import made, read_folder, write_shard, write_sharded

LIMITS = {f"{name}_bytes_per_second" for name in ("disk_direct", "disk_buffered", "memcpy", "h2d_1", "h2d_2", "h2d_4")}
RUN_KEYS = {"mode", "cache", "seconds", "bytes", "bytes_per_second", "stages"}
STAGE_KEYS = {"name", "start_seconds", "seconds", "bytes"}


class Loaded(NamedTuple):
    """What one real run left: its process, the document on its stdout, and the files beside it."""

    done: Any
    document: dict[str, Any]
    folder: Path


ONE_LOAD = ("--device", "cpu", "--mode", "map", "--cache", "warm", "--rounds", "1")
"""Of a way that takes little time."""


def bench(checkpoint: Path, *wishes: str) -> Any:
    """One real load, unless `wishes` say otherwise."""
    return run_python("-m", "coldctl", "bench", str(checkpoint), *ONE_LOAD, *wishes, timeout=300)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of a little over 4 MiB: an embedding and two layers."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_sharded(folder, [{"model.embed_tokens.weight": made("BF16", 1024, 2048)}, {**layer(0), **layer(1)}])
    return folder


@pytest.fixture(scope="module")
def loaded(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("beside")
    done = bench(checkpoint, "--json", "--report", str(folder / "page.html"), "--trace", str(folder / "trace.json"))
    assert done.returncode == 0, done.stderr
    return Loaded(done, json.loads(done.stdout), folder)


def test_the_one_document_has_the_promised_keys_and_figures(loaded: Loaded, checkpoint: Path) -> None:
    document = loaded.document
    assert (document["schema"], document["command"], document["ok"]) == ("coldctl.bench/1", "bench", True)
    assert document.keys() >= {"best", "best_reason", "first_layers_seconds", "attention_ready_seconds", "device"}
    assert document["limits"].keys() >= LIMITS
    (run,) = document["runs"]
    assert run.keys() >= RUN_KEYS
    nbytes = sum(len(tensor.data) for tensor in read_folder(checkpoint).values())
    assert (run["mode"], run["cache"], run["error"], run["bytes"]) == ("map", "warm", None, nbytes)
    assert run["bytes_per_second"] == pytest.approx(nbytes / run["seconds"])
    assert {"import_torch", "plan"} <= {stage["name"] for stage in run["stages"]}
    assert all(stage.keys() >= STAGE_KEYS for stage in run["stages"])


def test_the_document_says_what_was_asked_for(loaded: Loaded) -> None:
    asked = ("rounds", "verify", "first_layers", "memory_fraction", "max_split_size_bytes")
    assert [loaded.document[name] for name in asked] == [1, False, None, None, None]


class Tags(HTMLParser):
    """Counts elements that begin and that end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.begun.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.ended.append(tag)


def test_the_page_is_whole_and_of_this_run(loaded: Loaded, checkpoint: Path) -> None:
    text = (loaded.folder / "page.html").read_text(encoding="utf-8")
    assert re.match(r"\s*<!doctype html>", text, re.IGNORECASE)
    tags = Tags(text)
    for tag in ("html", "head", "body", "title", "section"):
        assert tags.begun.count(tag) == tags.ended.count(tag) > 0
    assert "script" not in tags.begun
    assert checkpoint.name in text


def test_the_trace_has_the_load_in_microseconds(loaded: Loaded) -> None:
    events = json.loads((loaded.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    (timeline,) = loaded.document["timelines"]
    spans = [event for event in events if event["ph"] == "X"]
    assert any(event["dur"] == pytest.approx(timeline["seconds"] * 1e6, abs=0.01) for event in spans)
    names = {STAGES.get(span["name"], span["name"]) for span in timeline["spans"]}
    assert names <= {event["name"] for event in spans}


def test_nothing_else_is_left_beside_them(loaded: Loaded) -> None:
    assert sorted(path.name for path in loaded.folder.iterdir()) == ["page.html", "trace.json"]


def faster(document: dict[str, Any], factor: float, rounds: int) -> dict[str, Any]:
    """`document` as if its one run had been made `rounds` times, each `factor` times as fast."""
    (run,) = document["runs"]
    runs = [{**run, "round": number, "seconds": run["seconds"] / factor} for number in range(rounds)]
    return {**document, "runs": runs}


def test_far_slower_than_the_baseline_exits_with_1_and_the_document_says_so(
    loaded: Loaded, checkpoint: Path, tmp_path: Path
) -> None:
    before = tmp_path / "before.json"
    before.write_text(json.dumps(faster(loaded.document, 1000, rounds=5)))
    done = bench(checkpoint, "--rounds", "5", "--baseline", str(before), "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is False
    (found,) = document["regressions"]
    assert (found["contender"], found["cache"], found["regressed"]) == ("map", "warm", True)
    assert found["low"] > 1.1


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        (["--verify"], "verify not asked for there, True here"),
        (["--first-layers", "1"], "first_layers not asked for there, 1 here"),
    ],
)
def test_a_baseline_of_other_loads_exits_with_2_before_anything_is_loaded(
    loaded: Loaded, checkpoint: Path, tmp_path: Path, wishes: Sequence[str], why: str
) -> None:
    before = tmp_path / "before.json"
    before.write_text(loaded.done.stdout)
    done = bench(checkpoint, "--baseline", str(before), "--json", *wishes)
    assert done.returncode == 2
    assert why in json.loads(done.stdout)["error"]["message"]


@pytest.mark.root
def test_a_page_that_does_not_fit_on_its_disk_does_not_cost_the_result(checkpoint: Path, tmp_path: Path) -> None:
    with tmpfs(4096) as disk:
        page, trace = disk / "page.html", tmp_path / "trace.json"
        done = bench(checkpoint, "--json", "--quiet", "--report", str(page), "--trace", str(trace))
        assert list(disk.iterdir()) == []
    assert done.returncode == 6
    document = json.loads(done.stdout)
    assert document["ok"] is False
    assert [run["error"] for run in document["runs"]] == [None]
    reason = f"cannot write {page}: No space left on device"
    assert document["notes"][-1] == reason
    assert done.stderr.startswith(f"coldctl: error: {reason}\ncoldctl: hint: ")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_bug_in_the_page_does_not_cost_the_result(coldctl_where: Run, checkpoint: Path, tmp_path: Path) -> None:
    """No input is known that brings one about."""
    broken = "import coldctl.report.html.page as module\nmodule.page = lambda result: 1 // 0"
    done = coldctl_where(broken, "bench", str(checkpoint), *ONE_LOAD, "--report", str(tmp_path / "page.html"))
    assert done.returncode == 70
    assert re.search(r"^map +warm +\d", done.stdout, re.MULTILINE)
    assert "note: this is a bug of coldctl" in done.stdout
    assert "coldctl: error: this is a bug of coldctl" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_shard(tmp_path / "model.safetensors", {"a": made("F32", 1000)})
    return tmp_path


def test_a_page_and_a_trace_in_one_file_are_refused_before_the_run(coldctl: Run, small: Path) -> None:
    (small / "link").symlink_to(small)
    for other in (small / "x", small / "link" / "x"):
        done = coldctl("bench", str(small), "--report", str(small / "x"), "--trace", str(other), "--json")
        assert done.returncode == 2
        error = json.loads(done.stdout)["error"]
        assert (error["code"], error["message"]) == ("usage", f"{small / 'x'} and {other} are one file")
    assert sorted(path.name for path in small.iterdir()) == ["link", "model.safetensors"]


def test_a_gpu_that_is_not_there_exits_with_5_and_the_one_document(coldctl: Run, small: Path) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    done = coldctl("bench", str(small), "--device", "cuda:0", "--json", environment=variables)
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert (document["schema"], document["ok"]) == ("coldctl.bench/1", False)
    assert (document["error"]["code"], document["error"]["exit_code"]) == ("environment", 5)
    assert "CUDA" in document["error"]["message"]


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (["--device", "cpu", "--mode", "ring"], "no such mode on the host: 'ring'"),
        (["--device", "cpu", "--compare", "pickle"], "no such peer: 'pickle'"),
        (["--cache", "lukewarm"], "--cache"),
        (["--rounds", "0"], "--rounds"),
        (["--max-regression", "-5%"], "--max-regression"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_what_does_not_exist_exits_with_2(coldctl: Run, small: Path, wishes: Sequence[str], told: str) -> None:
    done = coldctl("bench", str(small), *wishes, "--json")
    assert done.returncode == 2, done.stderr
    assert told in json.loads(done.stdout)["error"]["message"]


REGRESSED, HELD, THEIRS = regression(regressed=True), regression(), regression("safetensors")
SWEEP = [contender("ring"), contender("gds"), peer("runai")]


def swept(*failing: str, **changes: Any) -> BenchResult:
    """Two ways and a peer, cold; those that are named in `failing` failed in every round."""
    names = [each.name for each in SWEEP]
    summaries = [failed_summary(name, "cold") if name in failing else summary(name, "cold", [4.0]) for name in names]
    return gpu_result(contenders=SWEEP, summaries=summaries, **changes)


@pytest.mark.parametrize(
    ("found", "code"), [(None, 0), ([], 3), ([THEIRS], 3), ([THEIRS, HELD], 0), ([HELD], 0), ([REGRESSED, HELD], 1)]
)
def test_a_regression_is_exit_code_1_and_a_baseline_that_judges_no_way_of_ours_3(found: Any, code: int) -> None:
    assert _exit_code(result(regressions=found), ()) == code


@pytest.mark.parametrize(
    ("failing", "named", "code"),
    [
        ([], (), 0),
        (["runai"], (), 0),
        (["gds"], (), 0),
        (["gds"], ("ring",), 0),
        (["gds"], ("ring", "gds"), 3),
        (["ring", "gds"], (), 3),
        (["ring", "gds", "runai"], (), 3),
    ],
)
def test_a_way_that_failed_is_exit_code_3_where_it_was_named_or_none_loaded(
    failing: Sequence[str], named: Sequence[str], code: int
) -> None:
    assert _exit_code(swept(*failing), named) == code


def test_each_cache_state_has_to_have_a_load_of_coldctls_own() -> None:
    ways = [contender("ring"), contender("gds")]
    warm = [summary("ring", "warm", [1.0]), failed_summary("gds", "warm")]
    cold = [failed_summary("ring", "cold"), failed_summary("gds", "cold")]
    assert _exit_code(gpu_result(contenders=ways, summaries=warm), ()) == 0
    assert _exit_code(gpu_result(contenders=ways, summaries=[*cold, *warm]), ()) == 3


def test_a_way_that_failed_in_some_rounds_only_is_exit_code_3() -> None:
    summaries = [summary("ring", "cold", [4.0], failed=4, error="it crashed")]
    assert _exit_code(gpu_result(contenders=[contender("ring")], summaries=summaries), ()) == 3


def test_a_regression_comes_before_a_way_that_failed() -> None:
    slower = [regression("ring", regressed=True)]
    assert _exit_code(swept("gds", regressions=slower), ("ring", "gds")) == 1
