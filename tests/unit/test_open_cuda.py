"""coldctl.loader.device.cuda where there is no CUDA: it says what is missing. (tests/gpu tests the rest.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coldctl.errors import EnvironmentLacksError, UsageError
from coldctl.loader.device import cuda_gds
from coldctl.loader.device.cuda import open_cuda
from tests.standin import StandIn

OPEN = """
from coldctl.errors import EnvironmentLacksError
from coldctl.loader.device.cuda import open_cuda
try:
    open_cuda("cuda:1")
except EnvironmentLacksError as error:
    print(error.message, error.hint, sep=" | ")
"""


def said(before: str = "") -> str:
    """What a process that is shown no device says when it opens one, after the lines `before`."""
    command, hidden = [sys.executable, "-c", before + OPEN], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=hidden, capture_output=True, text=True, check=True).stdout


def test_what_torch_lacks_is_named() -> None:
    missing = "is a build without" if torch.version.cuda is None else "cannot use CUDA here: "
    message, hint = said().split(" | ")
    assert message.startswith(("cuda:1 needs torch with CUDA, ", "there is no cuda:1: "))
    assert f"torch {torch.__version__} {missing}" in message
    assert "CUDA" in hint


def test_torch_that_is_not_installed_is_named() -> None:
    not_installed = "import sys; sys.modules['torch'] = None"  # Python then finds no module of this name
    assert said(not_installed).startswith("cuda:1 needs torch, which cannot be imported: import of torch halted")


@pytest.mark.parametrize("name", ["cpu", "cuda:", "cuda:-1", "cuda:0 ", "gpu", ""])
def test_other_names_are_no_cuda_devices(name: str) -> None:
    with pytest.raises(UsageError, match="is no CUDA device"):
        open_cuda(name)


def pci_device(folder: Path, vendor: str, peer_memory: str | None) -> Path:
    folder.mkdir()
    (folder / "vendor").write_text(f"{vendor}\n")
    if peer_memory is not None:
        (folder / "p2pmem").mkdir()
        (folder / "p2pmem" / "size").write_text(f"{peer_memory}\n")
    return folder


def test_gds_is_refused_where_cufile_would_copy_through_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUFILE_ALLOW_COMPAT_MODE", raising=False)
    monkeypatch.setattr(cuda_gds, "_NVIDIA_FS", tmp_path / "stats")
    monkeypatch.setattr(cuda_gds, "_PCI_DEVICES", tmp_path)
    pci_device(tmp_path / "a-gpu", "0x10de", None)
    pci_device(tmp_path / "a-gpu-with-an-empty-pool", "0x10de", "0")
    pci_device(tmp_path / "a-disk-with-memory", "0x144d", "67108864")
    with pytest.raises(EnvironmentLacksError, match=r"nvidia-fs is not loaded .* would copy through host memory"):
        cuda_gds.open_gds(StandIn())
    assert "CUFILE_ALLOW_COMPAT_MODE" not in os.environ


@pytest.mark.parametrize("driver", ["nvidia-fs", "peer memory"])
def test_cufile_is_forbidden_its_compatibility_mode_before_it_is_used(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # cuFile, where torch has it, writes a log
    monkeypatch.setenv("CUFILE_ALLOW_COMPAT_MODE", "true")
    monkeypatch.setattr(cuda_gds, "_NVIDIA_FS", tmp_path / "stats")
    monkeypatch.setattr(cuda_gds, "_PCI_DEVICES", tmp_path)
    if driver == "nvidia-fs":
        (tmp_path / "stats").touch()
    else:
        pci_device(tmp_path / "a-gpu", "0x10de", "137438953472")
    device = StandIn()
    with pytest.raises(EnvironmentLacksError, match="no GPUDirect Storage: "):  # its memory is none of CUDA's
        cuda_gds.open_gds(device)
    assert os.environ["CUFILE_ALLOW_COMPAT_MODE"] == "false"
    assert device.allocated.peak_bytes == cuda_gds.SCRATCH_BYTES
    assert device.allocated.now_bytes == 0
