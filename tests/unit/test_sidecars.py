"""Which files come along with the weights, and which stay behind, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldctl.loader.format import sidecars
from tests.filesystems import as_nobody, tmpfs

LEADS_OUT = "a link that leads out of the checkpoint"


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def found(folder: Path, own: set[str] | None = None) -> tuple[list[str], dict[str, str]]:
    names, skipped = sidecars.find(str(folder), own or {"model.safetensors"})
    return names, {file.path: file.reason for file in skipped}


def test_everything_that_is_no_weight_comes_along_sorted_with_subfolders(tmp_path: Path) -> None:
    fill(tmp_path, "model.safetensors", "tokenizer.model", "config.json", "README.md", "LICENSE", "modeling_x.py",
         "1_Pooling/config.json", "a/b/c.txt", "empty")  # fmt: skip
    assert found(tmp_path) == (
        ["1_Pooling/config.json", "LICENSE", "README.md", "a/b/c.txt", "config.json", "empty", "modeling_x.py",
         "tokenizer.model"], {},
    )  # fmt: skip


def test_the_shards_index_and_manifest_are_neither(tmp_path: Path) -> None:
    own = {"model-1.safetensors", "sub/model-2.safetensors", "model.safetensors.index.json", "coldctl.json"}
    fill(tmp_path, *own, "config.json")
    assert found(tmp_path, own) == (["config.json"], {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin.index.json", "the index of weights that the checkpoint does not use"),
        ("tf_model.h5.index.json", "the index of weights that the checkpoint does not use"),
        ("other.safetensors.index.json", "the index of weights that the checkpoint does not use"),
        ("sub/model.safetensors.index.json", "the index of weights that the checkpoint does not use"),
        ("sub/coldctl.json", "the manifest of weights that the checkpoint does not use"),
    ],
)
def test_indexes_and_manifests_stay_with_their_weights(tmp_path: Path, name: str, reason: str) -> None:
    fill(tmp_path, "model.safetensors", name)
    assert found(tmp_path) == ([], {name: reason})


def test_an_index_of_anything_else_is_a_sidecar(tmp_path: Path) -> None:
    fill(tmp_path, "model.safetensors", "faiss.index.json", "index.json")
    assert found(tmp_path) == (["faiss.index.json", "index.json"], {})


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "consolidated.00.pth", "model.gguf", "onnx/model.onnx", "onnx/model.onnx_data", "tf_model.h5",
     "flax_model.msgpack", "other.safetensors", "sub/other.safetensors", "rust_model.ot", "training_args.pt",
     "x.safetensors.incomplete"],
)  # fmt: skip
def test_weights_that_the_checkpoint_does_not_use_stay_behind(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "model.safetensors", name)
    assert found(tmp_path) == ([], {name: "weights that the checkpoint does not use"})


def test_hidden_files_and_folders_are_not_looked_at(tmp_path: Path) -> None:
    fill(tmp_path, ".gitattributes", ".cache/huggingface/x.json", "sub/.hidden", "config.json")
    assert found(tmp_path) == (["config.json"], {})


def test_links_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    repo = tmp_path / "models--a--b"
    fill(repo, "blobs/0123", "blobs/4567")
    snapshot = repo / "snapshots" / "abcdef"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/0123")
    (snapshot / "sub" / "vocab.txt").symlink_to("../../../blobs/4567")
    assert found(snapshot) == (["config.json", "sub/vocab.txt"], {})
    linked = tmp_path / "linked"
    linked.symlink_to(snapshot)
    assert found(linked) == (["config.json", "sub/vocab.txt"], {})


def test_links_that_lead_elsewhere_stay_behind(tmp_path: Path) -> None:
    fill(tmp_path, "secret", "blobs/secret", "model/config.json")
    model = tmp_path / "model"
    (model / "absolute").symlink_to("/etc/passwd")
    (model / "up").symlink_to("../secret")
    (model / "no hub").symlink_to("../blobs/secret")
    (model / "in two steps").symlink_to("up")
    (model / "inside").symlink_to("config.json")
    assert found(model) == (
        ["config.json", "inside"],
        {"absolute": LEADS_OUT, "up": LEADS_OUT, "no hub": LEADS_OUT, "in two steps": LEADS_OUT},
    )


def test_blobs_next_to_any_folder_are_not_a_hub_cache(tmp_path: Path) -> None:
    fill(tmp_path, "blobs/secret", "models/m/config.json")
    (tmp_path / "models" / "m" / "x").symlink_to(tmp_path / "blobs" / "secret")
    assert found(tmp_path / "models" / "m") == (["config.json"], {"x": LEADS_OUT})


def test_dead_links_loops_pipes_and_linked_folders_stay_behind_and_are_not_opened(tmp_path: Path) -> None:
    fill(tmp_path, "model/config.json", "elsewhere/file")
    model = tmp_path / "model"
    (model / "dead").symlink_to("nowhere")
    (model / "loop").symlink_to("loop")
    os.mkfifo(model / "pipe")
    (model / "device").symlink_to("/dev/zero")
    (model / "folder").symlink_to(tmp_path / "elsewhere")
    (model / ".hidden").symlink_to(tmp_path / "elsewhere")
    assert found(model) == (
        ["config.json"],
        {
            "dead": "a link to nothing",
            "loop": "a link to nothing",
            "pipe": "not a regular file",
            "device": "not a regular file",
            "folder": "a linked folder",
        },
    )


def test_names_that_are_not_text_come_along(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_text("")
    assert found(tmp_path) == ([os.fsdecode(b"caf\xe9.json")], {})


@pytest.mark.root
def test_a_folder_that_cannot_be_listed_is_named() -> None:
    with tmpfs(1 << 20) as folder:
        fill(folder, "config.json", "private/vocab.txt")
        (folder / "private").chmod(0o700)
        assert as_nobody(lambda: found(folder)) == (["config.json"], {"private": "cannot be listed: Permission denied"})
