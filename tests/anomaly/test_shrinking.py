"""Files that change under the reader: an error that says so, never a crash, and nothing half done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coldctl.errors import ChangedError, ColdctlError
from coldctl.events import Events
from coldctl.jobs.prewarm import PrewarmOptions, prewarm
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.results.facts import FailedRange
from tests.cli.process import ROOT, run_python
from tests.tiny import header_of, made, shard_bytes, write_shard, write_sharded

MIB = 1 << 20


class Once(Events):
    """Does something when a phase begins, or when its first bytes are done."""

    def __init__(self, when: str, act: Callable[[], object]) -> None:
        self._when, self._act = when, act

    def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
        if self._when == "begin":
            self._act()

    def advance(self, nbytes: int) -> None:  # noqa: ARG002
        if self._when == "advance":
            self._act()


def shrink(path: Path) -> None:
    os.truncate(path, 2 * MIB + 17)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(header_of(path)[0])
        file.write(b"other")


def replace(path: Path) -> None:
    other = path.with_name(".other")
    other.write_bytes(shard_bytes({"a": made("U8", 8 * MIB, seed=5)}))
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


CHANGES = [shrink, empty, grow, write_in_place]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_shard(tmp_path / "model" / "model.safetensors", {"a": made("U8", 8 * MIB), "b": made("U8", 8 * MIB)})
    return tmp_path / "model"


@pytest.mark.parametrize("change", [*CHANGES, replace, remove])
def test_repack_of_a_file_that_changes_before_it_is_read(
    model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    events = Once("begin", lambda: change(model / "model.safetensors"))
    with pytest.raises(ColdctlError) as caught:
        repack(RepackOptions(str(model), str(tmp_path / "new" / "target")), events)
    assert caught.value.exit_code == 4
    assert "model.safetensors" in caught.value.message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", CHANGES)
def test_repack_of_a_file_that_changes_while_it_is_read(
    model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    events = Once("advance", lambda: change(model / "model.safetensors"))
    with pytest.raises(ChangedError):
        repack(RepackOptions(str(model), str(tmp_path / "new" / "target")), events)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("when", ["begin", "advance"])
@pytest.mark.parametrize("change", CHANGES)
def test_verify_of_a_file_that_changes(model: Path, tmp_path: Path, when: str, change: Callable[[Path], None]) -> None:
    repack(RepackOptions(str(model), str(tmp_path / "target")))
    events = Once(when, lambda: change(tmp_path / "target" / "model.safetensors"))
    with pytest.raises(ChangedError) as caught:
        verify(VerifyOptions(str(tmp_path / "target")), events)
    assert caught.value.exit_code == 4


def test_the_second_file_may_be_the_one_that_changes(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path / "model", [{"a": made("U8", MIB)}, {"b": made("U8", MIB)}])
    with pytest.raises(ChangedError, match="model-00002-of-00002"):
        repack(RepackOptions(str(tmp_path / "model"), str(tmp_path / "target")), Once("begin", lambda: grow(paths[1])))
    assert not (tmp_path / "target").exists()


def test_prewarm_of_a_file_that_shrinks_while_it_is_read_names_what_is_gone(tmp_path: Path) -> None:
    """Sparse, since only its length matters. A map of what is no longer there must not kill the process."""
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [40 * MIB], "data_offsets": [0, 40 * MIB]}}).encode()
    header += b" " * (4096 - 8 - len(header))
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 4096 + 40 * MIB)
    cut = 4096 + 20 * MIB
    events = Once("advance", lambda: os.truncate(path, cut))
    result = prewarm(PrewarmOptions(str(path), jobs=1), events)
    assert not result.complete
    assert result.failed == [
        FailedRange("model.safetensors", cut, 20 * MIB, f"the file ends at byte {cut}"),
    ]


def test_the_command_line_says_so_in_one_line_with_exit_code_4(model: Path, tmp_path: Path) -> None:
    """As when a download goes on: the file grows with the first write of its copy."""
    (tmp_path / "customs").mkdir()
    (tmp_path / "customs" / "sitecustomize.py").write_text(
        "import os\n"
        "real = os.pwrite\n"
        "def pwrite(fd, data, offset):\n"
        f"    open({str(model / 'model.safetensors')!r}, 'ab').close()\n"
        f"    os.truncate({str(model / 'model.safetensors')!r}, {3 * MIB})\n"
        "    return real(fd, data, offset)\n"
        "os.pwrite = pwrite\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path / 'customs'}{os.pathsep}{ROOT}"}
    ended = run_python("-m", "coldctl", "repack", str(model), str(tmp_path / "target"), environment=environment)
    assert ended.returncode == 4, ended.stderr
    assert "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "model.safetensors" in errors[0]
    assert not (tmp_path / "target").exists()
