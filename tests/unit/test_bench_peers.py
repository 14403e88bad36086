"""The peers: those that are installed bring the checkpoint's bytes, and the others say what they lack."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors
import torch

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.options import PEERS
from tests.loads import assert_same_as_the_files, library, save_mixed
from tests.tiny import made, write_sharded

MODULES = {"runai": "runai_model_streamer"}
ON_THE_HOST = [name for name in PEERS if peers.installed(name) and name not in ("instanttensor", "tensorizer")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of dtypes that every peer knows."""
    folder = tmp_path_factory.mktemp("plain")
    shards = [
        {"a": made("BF16", 64, 33), "b": made("F32"), "c": made("I64", 3, 3)},
        {"d": made("F16", 5), "e": made("F8_E4M3", 33, 7), "f": made("U8", 70_001)},
    ]
    write_sharded(folder, shards)
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.safetensors"))


def test_every_peer_that_bench_knows_can_be_called() -> None:
    assert tuple(peers.BY_NAME) == PEERS


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_an_installed_peer_brings_the_bytes_of_all_files(folder: Path, name: str) -> None:
    loaded = peers.imported(name)(files_of(folder), "cpu")
    assert_same_as_the_files(loaded.tensors, folder)


def test_torch_alone_knows_all_dtypes_wherever_they_lie(tmp_path: Path) -> None:
    save_mixed(tmp_path)
    tensors = peers.imported("torch")(files_of(tmp_path), "cpu").tensors
    assert_same_as_the_files(tensors, tmp_path)
    for name, theirs in library(tmp_path).items():
        if theirs.dtype is not torch.float4_e2m1fn_x2:
            assert (tensors[name].dtype, tensors[name].shape) == (theirs.dtype, theirs.shape)


@pytest.mark.parametrize("name", PEERS)
def test_installed_is_the_version_or_none(name: str) -> None:
    assert (peers.installed(name) is None) == (find_spec(MODULES.get(name, name)) is None)


def test_versions_are_those_of_the_packages() -> None:
    assert peers.installed("safetensors") == safetensors.__version__
    assert peers.installed("torch") == importlib.metadata.version("torch")


@pytest.mark.parametrize("name", ["safetensors", "fastsafetensors", "runai", "instanttensor", "tensorizer"])
def test_a_peer_that_cannot_be_imported_is_named_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = MODULES.get(name, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.torch", None)
    with pytest.raises(EnvironmentLacksError, match=f"^{name} cannot be imported: .*{module}") as caught:
        peers.imported(name)
    assert caught.value.hint == f"pip install {peers.BY_NAME[name].distribution}"


def test_peers_read_the_checkpoints_files_and_tensorizer_its_own_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "a [folder] *"
    folder.mkdir()
    files = [str(folder / "model-00001-of-00002.safetensors"), str(folder / "model-00002-of-00002.safetensors")]
    assert peers.files_read("tensorizer", files) == ()
    for name in ("b.tensors", "a.tensors", "a.tensors.txt"):
        (folder / name).touch()
    (tmp_path / "elsewhere.tensors").touch()
    assert peers.files_read("tensorizer", files) == (str(folder / "a.tensors"), str(folder / "b.tensors"))
    assert peers.files_read("runai", files) == tuple(files)


def test_what_a_peer_can_never_do_is_refused_without_it(tmp_path: Path) -> None:
    files = [str(tmp_path / "model.safetensors")]
    assert peers.refusal("instanttensor", files, "cpu") == "instanttensor loads to CUDA devices only"
    assert peers.refusal("instanttensor", files, "cuda:0") is None
    assert "no .tensors file" in (peers.refusal("tensorizer", files, "cpu") or "")
    (tmp_path / "model.tensors").touch()
    for name in set(PEERS) - {"instanttensor"}:
        assert peers.refusal(name, files, "cpu") is None
