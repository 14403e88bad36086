"""Every hostile file and folder gets its verdict, for the right reason, and soon."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from coldctl.errors import FaultError, InputError
from coldctl.loader.format.checkpoint import examine, open_checkpoint
from tests.anomaly.hostile import INPUT_ERROR, Case, write_all
from tests.anomaly.hostile_files import FILES
from tests.anomaly.hostile_folders import FOLDERS
from tests.anomaly.hostile_headers import HEADERS
from tests.anomaly.hostile_tensors import TENSORS

# Nothing here may hang; a verdict takes milliseconds, the rest is room for a busy machine.
pytestmark = pytest.mark.timeout(20)

NAMES = [*(f"files/{row[0]}" for row in (*HEADERS, *TENSORS, *FILES)), *(f"folders/{row[0]}" for row in FOLDERS)]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases" / "hostile.tar.gz"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {case.name: case for case in write_all(tmp_path_factory.mktemp("hostile"))}


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_verdict(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    if case.rule == INPUT_ERROR:
        with pytest.raises(InputError) as raised:
            examine(case.path)
        assert not isinstance(raised.value, FaultError)
        assert case.says in f"{raised.value.message} {raised.value.hint}"
        return
    examination = examine(case.path)
    assert examination.unreadable == []
    errors = [found for found in examination.findings if found.severity == "error"]
    assert bool(errors) == (case.expect == "reject"), examination.findings
    if case.rule is None:
        assert examination.findings == []
        return
    told = [
        found
        for found in examination.findings
        if found.rule == case.rule and (case.tensor is None or found.tensor == case.tensor)
    ]
    assert told, examination.findings
    assert any(case.says in f"{found.message} {found.hint}" for found in told), told


@pytest.mark.parametrize("name", NAMES)
def test_open_agrees_with_examine(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    if case.expect == "accept":
        checkpoint = open_checkpoint(case.path)
        assert checkpoint == examine(case.path).checkpoint
        return
    with pytest.raises(InputError) as raised:
        open_checkpoint(case.path)
    if case.rule != INPUT_ERROR:
        assert isinstance(raised.value, FaultError)
        assert raised.value.rule == next(f.rule for f in examine(case.path).findings if f.severity == "error")


if SHARED.exists():  # cases from outside the project: a test where they are, and none where they are not

    def test_shared_cases(tmp_path: Path) -> None:
        try:
            assert _wrong_verdicts(tmp_path) == []
        finally:
            shutil.rmtree(tmp_path)  # 170 MB that pytest would keep


def _wrong_verdicts(tmp_path: Path) -> list[tuple[str, bool, str]]:
    with tarfile.open(SHARED) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")  # it holds FIFOs and links that lead out
    (expected_path,) = tmp_path.rglob("expected.json")
    wrong = []
    for shared in json.loads(expected_path.read_text())["cases"]:
        if shared["kind"] in ("st", "dir"):
            verdict = _verdict(str(expected_path.parent / shared["path"]))
            if verdict != shared["expect"]:
                wrong.append((shared["name"], shared["hard"], verdict))
    return wrong


def _verdict(path: str) -> str:
    try:
        examination = examine(path)
    except InputError:
        return "reject"
    faulty = any(found.severity == "error" for found in examination.findings)
    return "reject" if faulty else "accept"
