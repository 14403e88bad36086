"""Which kernels an installation has and uses: wheels built for real, with a compiler and without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coldctl.kernels.compiled import LEVELS
from tests.cli.process import ROOT, clean_environment

NAME = "from coldctl._native import kernels; print(kernels().name)"
LIBRARY = "coldctl/kernels/libcoldctl.so"


def built(folder: Path, compiler: str) -> Path:
    """A wheel of this tree, made by pip with `compiler`, and unpacked: the folder with its files."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = (sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT))
    subprocess.run(command, check=True, env=clean_environment({"CC": compiler}), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / wheel.stem)
    return folder / wheel.stem


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("pure"), "false")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"weight": np.arange(1000.0)}, folder / "model.safetensors")
    return folder


def run(installed: Path, *arguments: str, native: str = "") -> subprocess.CompletedProcess[str]:
    environment = clean_environment({"PYTHONPATH": str(installed), "COLDCTL_NATIVE": native})
    command = (sys.executable, *arguments)
    return subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, timeout=60)


def name(installed: Path, native: str) -> str:
    done = run(installed, "-c", NAME, native=native)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def test_without_a_compiler_the_wheel_is_pure_and_works(pure: Path, model: Path, tmp_path: Path) -> None:
    assert pure.name.endswith("-py3-none-any")
    assert not (pure / LIBRARY).exists()
    assert [name(pure, native) for native in ("", "auto", "off")] == ["plain"] * 3
    done = run(pure, "-m", "coldctl", "repack", str(model), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert run(pure, "-m", "coldctl", "verify", str(tmp_path / "out")).returncode == 0


def test_what_demands_compiled_kernels_fails_with_5_before_it_writes(pure: Path, model: Path, tmp_path: Path) -> None:
    done = run(pure, "-m", "coldctl", "repack", str(model), str(tmp_path / "out"), native="on")
    assert done.returncode == 5
    assert "no compiled kernels" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_library_that_cannot_be_loaded_is_as_good_as_none(pure: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(pure, tmp_path / "broken"))
    (broken / LIBRARY).write_bytes(b"no library")
    assert [name(broken, native) for native in ("auto", "off")] == ["plain"] * 2
    assert "cannot be loaded" in name(broken, "on")


def test_another_value_is_a_usage_error(pure: Path) -> None:
    assert name(pure, "ON").startswith("coldctl.errors.UsageError: invalid value for COLDCTL_NATIVE: 'ON'")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_with_a_compiler_the_wheel_is_for_every_python_of_this_platform(tmp_path: Path) -> None:
    compiled = built(tmp_path, "cc")
    assert "-py3-none-linux_" in compiled.name
    assert name(compiled, "on") == name(compiled, "auto")
    assert name(compiled, "on") in LEVELS
    assert name(compiled, "off") == "plain"
