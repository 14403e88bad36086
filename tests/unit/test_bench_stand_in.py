"""Nothing simulated is ever measured: the stand-in that tests drive is no device of coldctl."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.process import ROOT, run_python
from tests.tiny import made, write_shard


@pytest.mark.parametrize("device", ["stand-in", "stand-in:0"])
def test_a_device_for_tests_is_no_device_for_bench(tmp_path: Path, device: str) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 5000)})
    done = run_python("-m", "coldctl", "bench", str(tmp_path), "--device", device, "--rounds", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{device}' is no CUDA device" in " ".join(done.stderr.split())
    assert "B/s" not in done.stderr


def test_no_module_of_coldctl_knows_the_stand_in() -> None:
    modules = list((ROOT / "coldctl").rglob("*.py"))
    naming = re.compile(r"\bstand_?in\b|^\s*(from|import) tests\b", re.IGNORECASE | re.MULTILINE)
    assert naming.search("from tests.standin import StandIn")
    assert len(modules) > 100
    assert [path for path in modules if naming.search(path.read_text())] == []
