"""What the caller may not do: one clear error with the right exit code, and nothing half done."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldctl.cli.main import main
from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from tests.filesystems import NOBODY, as_nobody, in_child, loop_filesystem, run, tmpfs
from tests.tiny import contents, made, snapshot, write_sharded

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def world() -> Iterator[Path]:
    """A folder that everybody may enter, with a repacked checkpoint of root's that everybody may read."""
    with tmpfs(32 * MIB) as folder:
        write_sharded(folder / "source", [{"a": made("U8", 9000)}, {"b": made("U8", 7)}])
        repack(RepackOptions(str(folder / "source"), str(folder / "model")))
        yield folder


def command_as_nobody(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `coldctl ARGUMENTS…` as the user nobody.

    It runs once as root before that: Python itself may be installed where nobody cannot read its modules.
    """

    def run_here() -> tuple[int, str, str]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["coldctl", *arguments]
            code = main()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
            return code, texts[0], texts[1]

    def prepare() -> None:
        run_here()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return in_child(run_here, prepare=prepare)


def error_as_nobody(options: Any, job: Any) -> tuple[str, int, str]:
    """Class, exit code and message of the error that `job` raises for nobody."""

    def work() -> tuple[str, int, str]:
        try:
            job(options)
        except EnvironmentLacksError as error:
            return type(error).__name__, error.exit_code, error.message
        return "no error", 0, ""

    return as_nobody(work)


@pytest.mark.parametrize("force", [False, True])
def test_a_read_only_target(world: Path, force: bool) -> None:
    with loop_filesystem("ext4", 16 * MIB) as filesystem:
        (filesystem.path / "old").mkdir()
        run("mount", "-o", "remount,ro", str(filesystem.path))
        for name in ("new", "old"):
            with pytest.raises(EnvironmentLacksError, match="Read-only file system") as caught:
                repack(RepackOptions(str(world / "source"), str(filesystem.path / name), force=force))
            assert caught.value.exit_code == 5
            assert "mounted writable" in str(caught.value.hint)
        assert contents(filesystem.path) == {}


def test_a_read_only_source_is_all_that_is_needed(world: Path) -> None:
    with loop_filesystem("ext4", 16 * MIB) as filesystem:
        write_sharded(filesystem.path / "source", [{"a": made("U8", 9000)}])
        run("mount", "-o", "remount,ro", str(filesystem.path))
        repack(RepackOptions(str(filesystem.path / "source"), str(world / "target")))
    assert verify(VerifyOptions(str(world / "target"))).findings == []


def test_a_target_that_the_caller_may_not_write(world: Path) -> None:
    (world / "forbidden").mkdir(mode=0o755)
    for target in (world / "forbidden", world / "forbidden" / "new"):
        name, code, message = error_as_nobody(RepackOptions(str(world / "source"), str(target)), repack)
        assert (name, code) == ("EnvironmentLacksError", 5)
        assert "Permission denied" in message
    assert contents(world / "forbidden") == {}


def test_nobody_may_repack_into_a_folder_of_its_own(world: Path) -> None:
    (world / "open").mkdir()
    (world / "open").chmod(0o777)
    as_nobody(lambda: repack(RepackOptions(str(world / "source"), str(world / "open" / "target"))).tensors)
    assert contents(world / "open" / "target") == contents(world / "model")


def test_a_source_that_the_caller_may_not_read(world: Path) -> None:
    (world / "source" / "model-00002-of-00002.safetensors").chmod(0o600)
    before = snapshot(world / "source")
    (world / "open").mkdir()
    (world / "open").chmod(0o777)
    options = RepackOptions(str(world / "source"), str(world / "open" / "target"))
    name, code, message = error_as_nobody(options, repack)
    assert (name, code) == ("EnvironmentLacksError", 5)
    assert "model-00002-of-00002.safetensors: Permission denied" in message
    assert contents(world / "open") == {}
    assert snapshot(world / "source") == before


def test_a_sidecar_that_the_caller_may_not_read_is_not_left_out_silently(world: Path) -> None:
    (world / "source" / "tokenizer.json").write_text("{}")
    (world / "source" / "tokenizer.json").chmod(0o600)
    (world / "open").mkdir()
    (world / "open").chmod(0o777)
    options = RepackOptions(str(world / "source"), str(world / "open" / "target"))
    name, code, message = error_as_nobody(options, repack)
    assert (name, code) == ("EnvironmentLacksError", 5)
    assert "tokenizer.json: Permission denied" in message
    assert contents(world / "open") == {}


def test_verify_calls_nothing_clean_that_it_may_not_read(world: Path) -> None:
    (world / "model" / "model-00002-of-00002.safetensors").chmod(0o600)
    result = as_nobody(lambda: verify(VerifyOptions(str(world / "model"))))
    assert [message.split("/")[-1] for message in result.unjudged] == [
        "model-00002-of-00002.safetensors: Permission denied"
    ]
    assert result.errors == []
    code, out, _ = command_as_nobody("verify", str(world / "model"), "--json")
    assert code == 5
    assert json.loads(out)["ok"] is False


def test_verify_says_so_when_it_may_not_read_the_manifest(world: Path) -> None:
    (world / "model" / "coldctl.json").chmod(0o600)
    result = as_nobody(lambda: verify(VerifyOptions(str(world / "model"))))
    assert (result.digests_checked, result.digests_reason) == (0, "coldctl.json cannot be read")
    assert len(result.unjudged) == 1
    assert command_as_nobody("verify", str(world / "model"))[0] == 5


def test_an_error_beats_what_could_not_be_read(world: Path) -> None:
    (world / "model" / "model-00002-of-00002.safetensors").chmod(0o600)
    with (world / "model" / "model-00001-of-00002.safetensors").open("r+b") as file:
        file.seek(4096)
        byte = file.read(1)[0]
        file.seek(4096)
        file.write(bytes([byte ^ 1]))
    code, out, _ = command_as_nobody("verify", str(world / "model"), "--json")
    assert code == 1
    assert [found["tensor"] for found in json.loads(out)["findings"] if found["severity"] == "error"] == ["a"]


@pytest.mark.parametrize("command", ["status", "prewarm", "evict", "verify"])
def test_a_folder_that_the_caller_may_not_enter(world: Path, command: str) -> None:
    (world / "model").chmod(0o700)
    code, out, err = command_as_nobody(command, str(world / "model"))
    assert (code, out) == (5, "")
    assert "Permission denied" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["status", "prewarm", "evict"])
def test_a_shard_that_the_caller_may_not_read(world: Path, command: str) -> None:
    (world / "model" / "model-00001-of-00002.safetensors").chmod(0o600)
    code, _, err = command_as_nobody(command, str(world / "model"))
    assert code == 5
    assert "model-00001-of-00002.safetensors: Permission denied" in err


def test_what_others_own_can_still_be_prewarmed_and_looked_at(world: Path) -> None:
    for command in ("prewarm", "status"):
        code, out, err = command_as_nobody(command, str(world / "model"), "--json")
        assert code == 0, err
        assert json.loads(out)["ok"]
