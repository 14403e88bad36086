"""`python -m scripts.bench`: its list is the README's figures, and it runs tiny real benchmarks to their end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.bench.__main__ import entry, run
from scripts.bench.catalogue import BENCHMARKS, Benchmark
from scripts.bench.machine import describe
from scripts.bench.needs import Modules, Need, Room, Root, Tool
from scripts.bench.suite import Suite
from tests.docs.readme import README, RESULTS, ROOT, generated_parts

PRELUDE = """
import sys
from scripts.bench.child import Sample
from scripts.bench.report import Target, conclude, parser
options = parser(None, rounds=7).parse_args()
"""
CONCLUDE = "sys.exit(conclude({name!r}, options, {{}}, {{}}, [Target('a', 'b', True), Target('c', 'd', {met})]))"


def suite_of(folder: Path, **bodies: str) -> Suite:
    """A package `tiny` with these modules, and an empty folder for its results."""
    (folder / "tiny").mkdir()
    (folder / "results").mkdir()
    for name, body in bodies.items():
        (folder / "tiny" / f"{name}.py").write_text(PRELUDE + body)
    return Suite("tiny", folder, folder / "results")


def whole(name: str, *, met: bool = True) -> str:
    return CONCLUDE.format(name=name, met=met)


def benchmark(name: str, *needs: Need) -> Benchmark:
    return Benchmark(name, "nothing", 1, needs)


@pytest.fixture(autouse=True)
def _repository_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def kept(suite: Suite) -> set[str]:
    return {path.name for path in suite.results.iterdir()}


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "scripts.bench", *arguments)
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_the_quoted_benchmarks_are_those_with_a_kept_result_and_those_in_the_readme() -> None:
    quoted = {each.name for each in BENCHMARKS if each.quoted}
    assert quoted == {path.stem for path in RESULTS.glob("*.json")}
    assert quoted == set(re.findall(r"^\| (\w+) \|", generated_parts(README.read_text())["figures"], re.M)) - {
        "benchmark"
    }


def test_every_script_that_judges_itself_is_listed_once() -> None:
    scripts = [path for path in (ROOT / "scripts" / "bench").glob("*.py") if path.name != "report.py"]
    judging = [path.stem for path in scripts if "conclude(" in path.read_text()]
    assert sorted(each.name for each in BENCHMARKS) == sorted(judging)


def test_the_result_of_each_that_ended_whole_is_kept_and_a_missed_target_exits_1_after_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite = suite_of(tmp_path, first=whole("first", met=False), second=whole("second"))
    assert run([benchmark("first"), benchmark("second")], suite) == 1
    assert kept(suite) == {"first.json", "second.json"}
    documents = [json.loads((suite.results / f"{name}.json").read_text()) for name in ("first", "second")]
    assert [document["benchmark"] for document in documents] == ["first", "second"]
    assert [document["rounds"] for document in documents] == [7, 7]
    said = capfd.readouterr().out
    assert "should have nothing else to do meanwhile. Its load average is " in said.partition("=== first")[0]
    assert "MISSED: d; wanted c" in said
    assert said.endswith("\nfirst: MISSED: 1 of 2 targets met\nsecond: met: 2 of 2 targets met\n")


def test_all_met_exits_0_and_rounds_reach_each_benchmark(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, first=whole("first"))
    assert run([benchmark("first")], suite, rounds=3) == 0
    assert json.loads((suite.results / "first.json").read_text())["rounds"] == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('boom')", "exit status 1, and no result"),
        ("sys.exit(5)", "exit status 5, and no result"),
        ("options.json.write_text('{'); import os; os.kill(os.getpid(), 9)", "killed by signal 9, and no result"),
    ],
)
def test_one_that_fails_is_reported_keeps_its_old_result_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], body: str, reason: str
) -> None:
    suite = suite_of(tmp_path, bad=body, good=whole("good", met=False))
    (suite.results / "bad.json").write_text("from before")
    assert run([benchmark("bad"), benchmark("good")], suite) == 3
    assert kept(suite) == {"bad.json", "good.json"}
    assert (suite.results / "bad.json").read_text() == "from before"
    said = capfd.readouterr().out
    assert f"\nbad: FAILED: {reason}; nothing new was kept\ngood: MISSED: 1 of 2 targets met\n" in said


def test_nothing_runs_when_something_is_missing_for_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = suite_of(tmp_path, first=whole("first"), second=whole("second"))
    lacking = (
        Tool("sh", "dash"),
        Tool("no-such-tool", "its-package"),
        Modules("the group", ("json", "no_such_module"), "pip install the-group"),
        Room(1, tmp_path),
        Room(1 << 60, tmp_path),
    )
    assert run([benchmark("first"), benchmark("second", *lacking)], suite) == 5
    assert kept(suite) == set()
    out, said = capfd.readouterr()
    assert out == ""
    first, *lines = said.splitlines()
    assert first == "nothing was run, because something is missing:"
    assert lines[:2] == [
        "  second: no-such-tool is not on PATH: apt-get install its-package",
        "  second: not installed: no_such_module: pip install the-group",
    ]
    assert lines[2].startswith(f"  second: {tmp_path} has ")
    assert lines[2].endswith(" free of 1048576.0 TiB: free some")
    assert len(lines) == 3


def test_root_is_missed_by_everyone_else() -> None:
    program = (
        "import os; from scripts.bench.needs import Root; os.geteuid() or os.setuid(65534); print(Root().lacking())"
    )
    done = subprocess.run((sys.executable, "-c", program), check=True, capture_output=True, text=True)
    assert done.stdout == "root mounts its disk: run it with sudo\n"
    assert (Root().lacking() is None) == (os.geteuid() == 0)


def test_ctrl_c_waits_until_the_benchmark_has_cleaned_up(tmp_path: Path) -> None:
    suite_of(
        tmp_path,
        slow="""
import pathlib, time
pathlib.Path("started").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path("cleaned up").touch()
""",
    )
    program = f"from pathlib import Path; from scripts.bench.suite import Suite; here = Path({str(tmp_path)!r}); "
    program += "Suite('tiny', here, here / 'results').run(['slow'])"
    with subprocess.Popen((sys.executable, "-c", program), start_new_session=True, stderr=subprocess.PIPE) as running:
        while not (tmp_path / "started").exists():
            assert running.poll() is None
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode != 0
    assert (tmp_path / "cleaned up").exists()
    assert list((tmp_path / "results").iterdir()) == []


def test_the_list_names_each_with_its_time_and_needs_and_runs_none() -> None:
    done = bench("--list")
    assert (done.returncode, done.stderr) == (0, "")
    for each in BENCHMARKS:
        assert f"{each.name}, about {each.minutes} min" in done.stdout
    assert "vmtouch" in done.stdout
    assert "by name only: the README does not quote it" in entry(next(each for each in BENCHMARKS if not each.quoted))
    assert "by name only" not in entry(next(each for each in BENCHMARKS if each.quoted))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("startup", "repack"), "no such benchmark: repack; there are startup, "),
        (("--rounds", "0"), "not a number of rounds: '0'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_without_the_tools_the_quoted_benchmarks_refuse_and_name_what_brings_them() -> None:
    done = bench(PATH="")
    assert done.returncode == 5
    assert "prewarm_vs_tools: vmtouch is not on PATH: apt-get install vmtouch" in done.stderr
    assert "repack_vs_cp: mkfs.ext4 is not on PATH: apt-get install e2fsprogs" in done.stderr
    assert "verify_vs_limit: fincore is not on PATH: apt-get install util-linux-extra" in done.stderr


def test_the_commit_is_dirty_only_by_what_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, code = tmp_path / "scripts/bench/results/one.json", tmp_path / "code.py"
    results.parent.mkdir(parents=True)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    for path in (results, code):
        path.write_text("as committed")
    subprocess.run((*git, "init", "-q"), check=True)
    subprocess.run((*git, "add", "."), check=True)
    subprocess.run((*git, "commit", "-q", "-m", "one"), check=True)
    head = subprocess.run((*git, "rev-parse", "HEAD"), check=True, capture_output=True, text=True).stdout
    monkeypatch.setattr("scripts.bench.machine.ROOT", tmp_path)
    results.write_text("new")
    commit = describe(tmp_path)["commit"]
    assert isinstance(commit, str)
    assert head.startswith(commit)
    code.write_text("changed")
    assert describe(tmp_path)["commit"] == f"{commit}-dirty"
