"""The exit code, stdout and stderr of every command for every outcome, from the real program on real files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldctl.jobs.repack import RepackOptions, repack
from tests.cli.process import Run
from tests.cli.terminal import on_a_terminal, visible
from tests.filesystems import LoopFilesystem, drop, fincore_bytes, holder, loop_filesystem, run, tmpfs
from tests.tiny import made, write_shard, write_sharded

MIB = 1 << 20

KEYS = {
    "repack": {
        "bytes",
        "tensors",
        "files",
        "aligned_tensors",
        "aligned_bytes",
        "fillers",
        "seconds",
        "peak_anon_bytes",
    },
    "verify": {"findings", "files", "tensors", "bytes", "digests_checked", "seconds"},
    "prewarm": {
        *("bytes", "resident_before_bytes", "resident_after_bytes", "read_bytes", "seconds", "reader", "streams"),
        *("budget_bytes", "complete", "failed"),
    },
    "evict": {
        *("bytes", "resident_before_bytes", "resident_after_bytes", "read_bytes", "seconds", "reader", "streams"),
        *("budget_bytes", "complete", "failed"),
    },
    "status": {"bytes", "resident_bytes", "files"},
}


def arguments_of(command: str, model: Path, tmp_path: Path) -> list[str]:
    return [command, str(model), *([str(tmp_path / "out")] if command == "repack" else [])]


@pytest.mark.parametrize("command", KEYS)
def test_a_result_is_text_on_stdout(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path))
    assert done.returncode == 0, done.stderr
    assert str(model) in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", KEYS)
def test_with_json_stdout_is_one_document_with_the_promised_keys(
    coldctl: Run, model: Path, tmp_path: Path, command: str
) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"], document["ok"]) == (f"coldctl.{command}/1", command, True)
    assert document.keys() >= KEYS[command]


@pytest.mark.parametrize("command", KEYS)
def test_json_may_be_asked_for_by_a_variable(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    variables = {f"COLDCTL_{command.upper()}_JSON": "1"}
    done = coldctl(*arguments_of(command, model, tmp_path), environment=variables)
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.parametrize("command", KEYS)
def test_quiet_leaves_stderr_empty(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != ""


@pytest.mark.parametrize("command", KEYS)
def test_quiet_does_not_silence_errors(coldctl: Run, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, tmp_path / "nowhere", tmp_path), "-q")
    assert done.returncode == 4
    assert done.stderr.startswith("coldctl: error: ")


@pytest.mark.parametrize("command", ["repack", "prewarm", "evict"])
def test_a_dry_run_changes_nothing(coldctl: Run, model: Path, tmp_path: Path, command: str) -> None:
    done = coldctl(*arguments_of(command, model, tmp_path), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_repack_then_verify_finds_a_flipped_bit_and_exits_with_1(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert coldctl("repack", str(model), str(out)).returncode == 0
    assert coldctl("verify", str(out)).returncode == 0
    shard = out / "model.safetensors"
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    text = coldctl("verify", str(out))
    assert text.returncode == 1
    assert "model.safetensors" in text.stdout
    document = json.loads(coldctl("verify", str(out), "--json").stdout)
    assert document["ok"] is False
    assert any(finding["severity"] == "error" for finding in document["findings"])
    assert coldctl("verify", str(out), "--no-digests").returncode == 0


def test_a_target_that_holds_something_is_refused_without_force(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"mine")
    assert coldctl("repack", str(model), str(out)).returncode == 3
    assert (out / "model.safetensors").read_bytes() == b"mine"
    assert coldctl("repack", str(model), str(out), "--force").returncode == 0


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def repacked(tmp_path: Path) -> Path:
    """Two shards with an index and digests."""
    write_sharded(tmp_path / "source", [{"a": made("U8", 5000)}, {"b": made("U8", 7)}])
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "repacked")))
    return tmp_path / "repacked"


def without_privileges() -> list[str]:
    """What makes root ask for permission as the owner of a file does."""
    return [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize(
    ("faults", "exit_code"),
    [
        ([], 0),
        (["leftover"], 0),
        (["flipped bit"], 1),
        (["flipped bit", "leftover"], 1),
        (["unreadable"], 5),
        (["unreadable", "leftover"], 5),
        (["unreadable", "flipped bit"], 1),
    ],
)
def test_verify_exits_with_1_for_errors_and_5_for_what_it_could_not_judge(
    coldctl: Run, repacked: Path, faults: list[str], exit_code: int
) -> None:
    first, second = sorted(repacked.glob("*.safetensors"))
    if "leftover" in faults:
        (repacked / "model-00003.safetensors.incomplete").write_bytes(b"")
    if "flipped bit" in faults:
        flip(first)
    if "unreadable" in faults:
        second.chmod(0)
    document = json.loads((done := coldctl("verify", str(repacked), "--json", prefix=without_privileges())).stdout)
    assert (done.returncode, document["ok"]) == (exit_code, exit_code == 0)
    assert {found["severity"] for found in document["findings"]} == {
        *(["error"] if "flipped bit" in faults else []),
        *(["warning"] if "leftover" in faults else []),
    }
    assert bool(document["unjudged"]) == ("unreadable" in faults)


def test_a_shard_that_cannot_be_read_keeps_the_others_from_starting_with_5(
    coldctl: Run, repacked: Path, tmp_path: Path
) -> None:
    sorted(repacked.glob("*.safetensors"))[1].chmod(0)
    for arguments in (["prewarm"], ["evict"], ["status"], ["repack", str(tmp_path / "out")]):
        command, *rest = arguments
        done = coldctl(command, str(repacked), *rest, prefix=without_privileges())
        assert (done.returncode, done.stdout) == (5, "")
        assert "model-00002-of-00002.safetensors: Permission denied" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def disk() -> Iterator[LoopFilesystem]:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        yield filesystem


@pytest.fixture
def cold(disk: LoopFilesystem) -> Iterator[Path]:
    """A file of 8 MiB that is on the disk and not in memory."""
    path = disk.path / "model.safetensors"
    write_shard(path, {"a": made("U8", 4 * MIB), "b": made("U8", 4 * MIB, seed=1)})
    run("sync", str(path))
    drop(path)
    assert fincore_bytes(path) == 0
    yield path
    path.unlink()


@pytest.mark.root
@pytest.mark.parametrize(
    ("flags", "complete", "exit_code"),
    [
        ([], True, 0),
        (["--strict"], True, 0),
        (["--all-or-nothing"], True, 0),
        (["--budget", "1MiB"], False, 0),
        (["--budget", "1MiB", "--strict"], False, 3),
        (["--budget", "none", "--strict"], True, 0),
    ],
)
def test_prewarm_exits_with_3_when_strict_is_not_met(
    coldctl: Run, cold: Path, flags: list[str], complete: bool, exit_code: int
) -> None:
    done = coldctl("prewarm", str(cold), "--json", *flags)
    assert done.returncode == exit_code
    document = json.loads(done.stdout)
    assert (document["complete"], document["ok"]) == (complete, exit_code == 0)
    if complete:
        assert fincore_bytes(cold) >= cold.stat().st_size
    else:
        assert 0 < fincore_bytes(cold) < 2 * MIB


@pytest.mark.root
def test_all_or_nothing_reads_nothing_and_exits_with_3(coldctl: Run, cold: Path) -> None:
    done = coldctl("prewarm", str(cold), "--budget", "1MiB", "--all-or-nothing", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "refused"
    assert fincore_bytes(cold) < MIB


@pytest.mark.root
@pytest.mark.parametrize("flags", [[], ["--strict"]])
def test_prewarm_exits_with_3_when_bytes_cannot_be_read(coldctl: Run, flags: list[str]) -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        path = filesystem.path / "model.safetensors"
        write_shard(path, {"a": made("U8", 8 * MIB)})
        run("sync", str(path))
        filesystem.make_unreadable(path, 4 * MIB)
        done = coldctl("prewarm", str(path), "--json", *flags)
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert (document["complete"], document["ok"]) == (False, False)
    assert document["failed"]


@pytest.mark.root
def test_evict_exits_with_3_while_another_process_maps_the_file(coldctl: Run, cold: Path) -> None:
    cold.read_bytes()
    with holder(cold, "map") as pid:
        done = coldctl("evict", str(cold), "--json")
        assert done.returncode == 3
        document = json.loads(done.stdout)
        assert (document["complete"], document["ok"]) == (False, False)
        assert f"(pid {pid})" in document["kept"][0]["reason"]
        assert document["resident_after_bytes"] == pytest.approx(fincore_bytes(cold), abs=4096)
        assert coldctl("evict", str(cold), "--dry-run").returncode == 0
    assert coldctl("evict", str(cold)).returncode == 0
    assert fincore_bytes(cold) == 0


@pytest.mark.root
def test_evict_exits_with_3_on_tmpfs(coldctl: Run) -> None:
    with tmpfs(4 * MIB) as folder:
        write_shard(folder / "model.safetensors", {"a": made("U8", MIB)})
        done = coldctl("evict", str(folder))
        assert done.returncode == 3
        assert "pages of tmpfs are the file itself" in done.stdout
        assert coldctl("evict", str(folder), "--dry-run").returncode == 0


def test_repack_exits_with_3_for_a_loader_that_is_known_to_fail(coldctl: Run, model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text('{"model_type": "gemma"}')
    write_shard(model / "model.safetensors", {"a": made("U8", 5), "b": made("U8", 5)})
    arguments = ["repack", str(model), str(tmp_path / "out"), "--align", "every", "--loader"]
    refused = coldctl(*arguments, "sglang", "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["error"]["code"] == "refused"
    assert not (tmp_path / "out").exists()
    assert coldctl(*arguments, "vllm").returncode == 0


def test_repack_exits_with_4_for_a_damaged_source(coldctl: Run, model: Path, tmp_path: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"more than the header tells of")
    done = coldctl("repack", str(model), str(tmp_path / "out"), "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["code"].startswith("header.")
    assert not (tmp_path / "out").exists()


@pytest.mark.root
def test_repack_exits_with_6_without_space(coldctl: Run, cold: Path) -> None:
    with tmpfs(4 * MIB) as folder:
        done = coldctl("repack", str(cold), str(folder / "out"), "--json")
        assert done.returncode == 6
        assert json.loads(done.stdout)["error"]["code"] == "no-space"
        assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"align": "page", "order": "name", "dry_run": False, "fillers": 0, "aligned_tensors": 2}),
        (["--align", "every"], {"align": "every", "fillers": 1, "aligned_tensors": 3}),
        (["--order", "layers", "--dry-run"], {"order": "layers", "dry_run": True}),
    ],
)
def test_options_of_repack_do_what_they_say(
    coldctl: Run, tmp_path: Path, flags: list[str], expected: dict[str, Any]
) -> None:
    # The sizes are 4096, 7 and 5 bytes: a page, a tensor that starts after it, and one that does so after a filler.
    write_sharded(tmp_path / "model", [{"a": made("U8", 4096)}, {"b": made("U8", 7), "c": made("U8", 5)}])
    arguments = ["repack", str(tmp_path / "model"), str(tmp_path / "out"), "--shard-size", "1GiB", "--json", *flags]
    document = json.loads(coldctl(*arguments).stdout)
    assert {key: document[key] for key in expected} == expected
    assert [file["path"] for file in document["files"]] == ["model.safetensors"]


def test_shard_size_of_repack_cuts_anew(coldctl: Run, model: Path, tmp_path: Path) -> None:
    assert coldctl("repack", str(model), str(tmp_path / "out"), "--shard-size", "16384").returncode == 0
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 2


@pytest.mark.parametrize(("flags", "checked"), [([], 2), (["--digests"], 2), (["--no-digests"], 0)])
def test_digests_of_verify_can_be_left_out(coldctl: Run, repacked: Path, flags: list[str], checked: int) -> None:
    document = json.loads(coldctl("verify", str(repacked), "--json", *flags).stdout)
    assert document["digests_checked"] == checked


@pytest.mark.root
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"order": "name", "dry_run": False, "read_bytes": 8 * MIB}),
        (["--order", "attention-first", "--budget", "3MiB"], {"order": "attention-first", "budget_bytes": 3 * MIB}),
        (["--budget", "none", "--jobs", "1"], {"budget_bytes": None, "streams": 1}),
        (["--dry-run", "--budget", "3MiB"], {"dry_run": True, "read_bytes": 0, "budget_bytes": 3 * MIB}),
    ],
)
def test_options_of_prewarm_do_what_they_say(
    coldctl: Run, cold: Path, flags: list[str], expected: dict[str, Any]
) -> None:
    document = json.loads(coldctl("prewarm", str(cold), "--json", *flags).stdout)
    found = {key: document[key] for key in expected}
    if expected.get("read_bytes"):
        # The pages of the header and of what the header's own reading brought in are extra.
        assert abs(found.pop("read_bytes") - expected["read_bytes"]) < MIB
    assert found == {key: value for key, value in expected.items() if key in found}


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_a_result_is_coloured_only_on_a_terminal_that_may_be(
    model: Path, environment: dict[str, str], coloured: bool
) -> None:
    shown, _ = on_a_terminal("-m", "coldctl", "verify", str(model), stream="stdout", environment=environment)
    assert ("\x1b[32mclean\x1b[0m" in shown) == coloured
    assert ("\x1b" in shown) == coloured
    assert visible(shown)[-1] == "clean"


def test_a_real_job_draws_a_bar_on_a_terminal(coldctl: Run, model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert coldctl("repack", str(model), out).returncode == 0
    shown, stdout = on_a_terminal("-m", "coldctl", "verify", out, stream="stderr")
    assert "(100 %)" in visible(shown)[-1]
    assert stdout.splitlines()[-1] == "clean"
