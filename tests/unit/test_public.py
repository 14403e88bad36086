"""The public API: every name that the package promises is there, and none is imported before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import coldctl
from coldctl.jobs import bench, evict, fp8, prewarm, repack, status, verify

JOBS = {
    "repack": (repack, "RepackOptions"),
    "convert_fp8": (fp8, "Fp8Options"),
    "verify": (verify, "VerifyOptions"),
    "prewarm": (prewarm, "PrewarmOptions"),
    "evict": (evict, "EvictOptions"),
    "status": (status, "StatusOptions"),
    "bench": (bench, "BenchOptions"),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_command_is_a_function_with_its_options(name: str) -> None:
    home, options = JOBS[name]
    assert getattr(coldctl, name) is getattr(home, name)
    assert getattr(coldctl, options) is getattr(home, options)


def test_every_name_that_is_listed_is_there() -> None:
    assert dir(coldctl) == sorted(coldctl.__all__)
    for name in coldctl.__all__:
        assert getattr(coldctl, name) is not None
    with pytest.raises(AttributeError, match="module 'coldctl' has no attribute 'benchmark'"):
        coldctl.benchmark  # noqa: B018


def test_the_package_alone_imports_none_of_them() -> None:
    program = "import sys, coldctl; print([name for name in sys.modules if name.startswith('coldctl.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
