"""Source and target kept apart, by what the files and folders are and not by how their paths are spelled.

Links, bind mounts and second mounts of one filesystem give the same file several paths; its device and inode stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from coldctl.errors import RefusedError, UsageError
from coldctl.loader.format.checkpoint import Checkpoint

_MOST_LINKS = 40  # as many as Linux follows

_Identity = tuple[int, int]


def check_apart(source: Checkpoint, target: str) -> None:
    """Refuse a target that is the source, holds it, or lies in it. Raises UsageError."""
    real_source, real_target = os.path.realpath(source.root), os.path.realpath(target)
    root, chosen = _identity(real_source), _identity(real_target)
    if real_target == real_source or (root is not None and root == chosen):
        raise UsageError(f"source and target are the same folder: {target}", hint="choose another target")
    if chosen is not None and chosen in _and_above(real_source):
        raise UsageError(f"the source lies inside the target {target}", hint="choose a target that does not hold it")
    if not source.single_file and _and_above(real_target) & _and_below(real_source):
        raise UsageError(f"the target {target} lies inside the source", hint="choose a target outside it")


def check_harmless(source: Checkpoint, sidecars: Iterable[str], target: str, names: list[str], gone: list[str]) -> None:
    """Refuse to make `names` in a folder of the source, and to take `gone` out of the target when the source needs it.

    A file is needed when the path of one of the source's leads through its name, or when it is one of them and has no
    other name. Raises RefusedError; OSError when a file of the source is not there any more.
    """
    if not source.single_file:
        _check_folders(source, target, names)
    if not gone:
        return
    files = [*(shard.path for shard in source.shards), *(os.path.join(source.root, name) for name in sidecars)]
    if source.index_name is not None:
        files.append(os.path.join(source.root, source.index_name))
    places = {place for path in files for place in _places(path)}
    needed = {_identity(path) for path in files}
    for name in gone:
        path = os.path.join(target, name)
        status = os.lstat(path)
        is_last_name = status.st_nlink == 1 and (status.st_dev, status.st_ino) in needed
        if is_last_name or next(_places(path)) in places:
            raise RefusedError(f"{name} in {target} is a file of the source", hint="choose another target")


def _check_folders(source: Checkpoint, target: str, names: list[str]) -> None:
    folders = {os.path.dirname(name) for name in names} - {""}
    written = {_identity(os.path.join(target, folder)) for folder in folders} - {None}
    if written and written & _and_below(source.root):
        raise RefusedError(f"a folder of the source lies inside the target {target}", hint="choose another target")


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino)


def _and_above(folder: str) -> set[_Identity]:
    """The identities of a folder, which need not be there, and of all that it is in."""
    found = set()
    while True:
        if identity := _identity(folder):
            found.add(identity)
        if folder == os.path.dirname(folder):
            return found
        folder = os.path.dirname(folder)


def _and_below(folder: str) -> set[_Identity]:
    """The identities of a folder and of all in it, without following links."""
    return {identity for path, _, _ in os.walk(folder) if (identity := _identity(path))}


def _places(path: str) -> Iterator[tuple[int, int, str]]:
    """Every name that the kernel looks up on the way from `path` to its file: folder's device and inode, and name."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        status = os.stat(folder or ".")
        yield status.st_dev, status.st_ino, name
        if not os.path.islink(path):
            return
        path = os.path.join(folder, os.readlink(path))
