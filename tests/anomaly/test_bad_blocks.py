"""A disk that cannot read some of a checkpoint's blocks: said with the place, and everything else is done."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coldctl.errors import UnreadableError
from coldctl.jobs.prewarm import PrewarmOptions, prewarm
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from tests.cli.process import run_python
from tests.filesystems import loop_filesystem
from tests.tiny import made, read_shard, write_shard

pytestmark = pytest.mark.root

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
NAMES = ["a", "b", "c", "d"]


class Damaged(NamedTuple):
    """`first_bad` is the first byte that cannot be read, in the middle of tensor `c`; all from there on is bad."""

    folder: Path
    file: Path
    first_bad: int


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    """A repacked checkpoint of four tensors of 4 MiB on a disk that lost its end."""
    write_shard(tmp_path / "source" / "model.safetensors", {name: made("U8", 4 * MIB, seed=1) for name in NAMES})
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        folder = filesystem.path / "model"
        repack(RepackOptions(str(tmp_path / "source"), str(folder)))
        file = folder / "model.safetensors"
        tensor = read_shard(file)["c"]
        first_bad = tensor.offset + 2 * MIB + 16 * PAGE
        filesystem.make_unreadable(file, first_bad)
        with file.open("rb") as opened:
            assert len(os.pread(opened.fileno(), PAGE, first_bad - PAGE)) == PAGE
            with pytest.raises(OSError, match="Input/output error"):
                os.pread(opened.fileno(), 1, first_bad)
        yield Damaged(folder, file, first_bad)


def test_repack_stops_with_the_byte_and_leaves_nothing(damaged: Damaged, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError) as caught:
        repack(RepackOptions(str(damaged.folder), str(tmp_path / "target")))
    assert caught.value.exit_code == 3
    found = re.fullmatch(r"cannot read model\.safetensors at byte (\d+): Input/output error", caught.value.message)
    assert found, caught.value.message
    # Threads race: the error may be that of `d`, which is bad as a whole.
    assert int(found[1]) >= damaged.first_bad - MIB
    assert not (tmp_path / "target").exists()


def test_verify_judges_what_it_can_and_names_the_rest(damaged: Damaged) -> None:
    result = verify(VerifyOptions(str(damaged.folder)))
    assert result.errors == []
    assert result.digests_checked == 2
    assert [message.split(":")[0] for message in sorted(result.unjudged)] == [
        "model.safetensors, tensor c",
        "model.safetensors, tensor d",
    ]


def test_verify_still_finds_what_is_wrong_in_the_readable_part(damaged: Damaged, tmp_path: Path) -> None:
    document = json.loads((damaged.folder / "coldctl.json").read_text())
    next(entry for entry in document["tensors"] if entry["name"] == "a")["b3"] = "00" * 32
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "coldctl.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    (copy / "model.safetensors").symlink_to(damaged.file)
    result = verify(VerifyOptions(str(copy)))
    # The manifest was changed, not the file: so its own root does not hold either.
    assert [(found.rule, found.tensor) for found in result.errors] == [("digest.mismatch", "a"), ("digest.root", None)]
    assert len(result.unjudged) == 2


def test_prewarm_names_the_bad_range_and_warms_the_rest(damaged: Damaged) -> None:
    result = prewarm(PrewarmOptions(str(damaged.folder)))
    size = damaged.file.stat().st_size
    assert not result.complete
    assert {failure.file for failure in result.failed} == {"model.safetensors"}
    assert {failure.error for failure in result.failed} == {"Input/output error"}
    assert min(failure.offset_bytes for failure in result.failed) == damaged.first_bad
    assert sum(failure.length_bytes for failure in result.failed) == size - damaged.first_bad
    assert result.resident_after_bytes == damaged.first_bad


@pytest.mark.parametrize(("command", "code"), [("repack", 3), ("verify", 5), ("prewarm", 3)])
def test_the_command_line_says_so_with_the_right_exit_code(
    damaged: Damaged, tmp_path: Path, command: str, code: int
) -> None:
    target = [str(tmp_path / "target")] if command == "repack" else []
    ended = run_python("-m", "coldctl", command, str(damaged.folder), *target, "--json")
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    document = json.loads(ended.stdout)
    assert document["ok"] is False
    if command == "repack":
        assert document["error"]["code"] == "unreadable"
        assert re.search(r"at byte \d+: Input/output error", document["error"]["message"])
    elif command == "verify":
        assert len(document["unjudged"]) == 2
    else:
        assert document["failed"][0]["offset_bytes"] == damaged.first_bad
