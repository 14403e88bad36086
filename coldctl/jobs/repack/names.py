"""What the new files are called: so that whoever is given the target folder finds the checkpoint in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from coldctl.errors import InputError, RefusedError
from coldctl.loader.format.checkpoint import Checkpoint

INDEX_SUFFIX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_MAIN = "model"
_NUMBERED = re.compile(r".+-\d+-of-(\d+)\.safetensors", re.ASCII | re.DOTALL)


def stem(checkpoint: Checkpoint) -> str:
    """`model` of `model.safetensors.index.json`, and of `model-00001-of-00002.safetensors`; never a hidden name."""
    name = os.path.basename(checkpoint.index_name or checkpoint.shards[0].name)
    found = re.sub(r"-\d+-of-\d+$", "", name.removesuffix(".index.json").removesuffix(_SUFFIX))
    return _MAIN if not found or found.startswith(".") else found


def of_index(checkpoint: Checkpoint, shard_count: int) -> str | None:
    """None for a single file whose source has no index."""
    if shard_count == 1 and checkpoint.index_name is None:
        return None
    return stem(checkpoint) + INDEX_SUFFIX


def of_only_file(name: str) -> str:
    """`name`, when a folder that holds such a file and no index is a checkpoint; else `model.safetensors`."""
    numbered = _NUMBERED.fullmatch(name)
    part_of_more = numbered is not None and int(numbered[1]) != 1
    if name.startswith(".") or not name.endswith(_SUFFIX) or part_of_more:
        return _MAIN + _SUFFIX
    return name


def check_text(names: Iterable[str]) -> None:
    """Raises InputError for a name that cannot stand in the index and the manifest, which are JSON."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"the name {name} is not text in UTF-8, as the names in an index and a manifest have to be",
                hint="rename the file, and repack again",
            ) from None


def check_distinct(names: list[str]) -> None:
    """Raises RefusedError when two files would get the same name, or one the name of a folder that another is in."""
    files = set(names)
    if len(files) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(f"two files would be called {twice}", hint="rename the one beside the weights")
    for name in names:
        folder = os.path.dirname(name)
        while folder:
            if folder in files:
                raise RefusedError(
                    f"a file has to be called {folder}, and the source has a folder of that name",
                    hint="rename the folder, or move it out of the source",
                )
            folder = os.path.dirname(folder)
