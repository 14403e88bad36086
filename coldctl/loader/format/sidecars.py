"""The files that belong to a checkpoint and are not weights: config, tokenizer, code. They come along in a repack."""

from __future__ import annotations

import os
from collections.abc import Iterator

from coldctl.loader.format import manifest
from coldctl.results.facts import SkippedFile

_WEIGHT_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ot",
    ".npz", ".tflite", ".pkl", ".pickle", ".incomplete",
)  # fmt: skip
_INDEX_SUFFIX = ".index.json"


def find(root: str, own: set[str]) -> tuple[list[str], list[SkippedFile]]:
    """The sidecars under `root`, relative to it and sorted, and what was left behind with the reason.

    `own` are the checkpoint's shards, index and manifest, which are neither. Other weights (a second format, a
    consolidated copy) stay behind: they would double the size, and readers would not know which to take. Their indexes
    and manifests stay with them.

    Links are followed to files inside `root`, and to the blobs of a hub cache whose snapshot `root` is; a link that
    leads elsewhere is left behind, so that a downloaded folder cannot make a repack publish files of the host.
    """
    sidecars: list[str] = []
    skipped: list[SkippedFile] = []
    for name in _walk(root, skipped):
        if name in own:
            continue
        if reason := _reason_to_skip(root, name):
            skipped.append(SkippedFile(name, reason))
        else:
            sidecars.append(name)
    return sorted(sidecars), sorted(skipped, key=lambda file: file.path)


def _walk(root: str, skipped: list[SkippedFile]) -> Iterator[str]:
    """Names of all that is not a folder; hidden names are not looked at, linked folders not entered."""

    def leave_behind(error: OSError) -> None:
        skipped.append(SkippedFile(os.path.relpath(error.filename, root), f"cannot be listed: {error.strerror}"))

    for folder, subfolders, names in os.walk(root, onerror=leave_behind):
        relative = os.path.relpath(folder, root)
        for subfolder in list(subfolders):
            path = os.path.join(folder, subfolder)
            if subfolder.startswith(".") or os.path.islink(path):
                subfolders.remove(subfolder)
                if not subfolder.startswith("."):
                    skipped.append(SkippedFile(os.path.normpath(os.path.join(relative, subfolder)), "a linked folder"))
        yield from (os.path.normpath(os.path.join(relative, name)) for name in names if not name.startswith("."))


def _reason_to_skip(root: str, name: str) -> str | None:
    path = os.path.join(root, name)
    if name.endswith(_WEIGHT_SUFFIXES):
        return "weights that the checkpoint does not use"
    if name.removesuffix(_INDEX_SUFFIX).endswith(_WEIGHT_SUFFIXES):
        return "the index of weights that the checkpoint does not use"
    if os.path.basename(name) == manifest.NAME:
        return "the manifest of weights that the checkpoint does not use"
    if not os.path.exists(path):
        return "a link to nothing"
    if not os.path.isfile(path):
        return "not a regular file"
    if os.path.islink(path) and not _leads_home(root, path):
        return "a link that leads out of the checkpoint"
    return None


def _leads_home(root: str, path: str) -> bool:
    target = os.path.realpath(path)
    home = os.path.realpath(root)
    homes = [home]
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        homes.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    return any(os.path.commonpath([target, folder]) == folder for folder in homes)
