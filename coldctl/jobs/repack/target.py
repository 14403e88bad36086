"""The target folder of a repack: what may be written there, and what of an older checkpoint has to go."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from coldctl.errors import FaultError, InputError, NoSpaceError, RefusedError
from coldctl.jobs.repack.names import INDEX_SUFFIX
from coldctl.loader.atomic import is_leftover, leads_out
from coldctl.loader.format import manifest
from coldctl.loader.format.locate import locate
from coldctl.loader.format.locate.folder import list_folder
from coldctl.loader.format.locate.names import objection
from coldctl.units import format_size

_WEIGHTS_SUFFIX = ".safetensors"


def check_target(target: str, names: Sequence[str], size_bytes: int, *, force: bool) -> list[str]:
    """The files in the target that have to make place, in the order in which they may go (see `_in_order`).

    Refuses a folder that holds something (unless forced), a folder in a file's place, other weights that would be
    taken for the new ones, and a disk that is too full. A target that is not there yet is fine, if there is room where
    it will be. Raises RefusedError, NoSpaceError, OSError for a folder that cannot be looked into, and
    EnvironmentLacksError or UnreadableError when an old index or manifest cannot be read.
    """
    folder = _nearest_folder(target)
    replaced: list[str] = []
    if folder == target:
        _check_entries(target, names, force=force)
        replaced = _in_order({*_present(target, names), *_of_old_checkpoint(target)})
        _check_found(target, names, replaced)
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    if size_bytes > free_bytes:
        raise NoSpaceError(
            f"{target} has {format_size(free_bytes)} free, and the new checkpoint needs {format_size(size_bytes)}"
        )
    return replaced


def _of_old_checkpoint(target: str) -> set[str]:
    """Index, manifest and shards of the checkpoint that is written over: beside the new ones they would mislead.

    Only what an index in use or a manifest of ours names: any other weights may be somebody's only copy, and stay.
    """
    return _by_index(target) | _by_manifest(target)


def _by_index(target: str) -> set[str]:
    try:
        old = locate(target)
    except InputError:  # no checkpoint stands there
        return set()
    if old.index_name is None:
        return set()
    if old.unreadable:
        raise old.unreadable[0]
    return {old.index_name, *(member.name for member in old.members)}


def _by_manifest(target: str) -> set[str]:
    try:
        old = manifest.load(target)
    except FaultError:  # not ours
        return set()
    if old is None:
        return set()
    return {manifest.NAME, *(file.path for file in old.files if _is_weights_in(target, file.path))}


def _is_weights_in(target: str, name: str) -> bool:
    """Whether `name`, which a file gave, is that of weights in `target` itself, and not of anything elsewhere."""
    if objection(name) or not name.endswith(_WEIGHTS_SUFFIX) or leads_out(target, name):
        return False
    return os.path.isfile(os.path.join(target, name))


def _present(target: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if os.path.lexists(os.path.join(target, name))]


def _in_order(names: set[str]) -> list[str]:
    """What makes a set usable goes first: the index, without one the weights."""

    def key(name: str) -> tuple[int, str]:
        if name.endswith(INDEX_SUFFIX):
            return 0, name
        if name.endswith(_WEIGHTS_SUFFIX):
            return 1, name
        return (2 if name == manifest.NAME else 3), name

    return sorted(names, key=key)


def _check_found(target: str, names: Sequence[str], replaced: Sequence[str]) -> None:
    """Refuse when a loader that is given the folder would take what stays there for the checkpoint."""
    going = {*names, *replaced}
    listing = list_folder(target)
    indexes = [name for name in listing.indexes if name not in going]
    weights = [name for name in listing.weights if name not in going]
    if f"model{INDEX_SUFFIX}" in names:
        return
    has_index = any(name.endswith(INDEX_SUFFIX) for name in names)
    decided = has_index or f"model{_WEIGHTS_SUFFIX}" in names
    if in_the_way := indexes if decided else indexes + weights:
        raise RefusedError(
            f"{in_the_way[0]} stays in {target}, and loaders would take it for the checkpoint, or a part of it",
            hint="move it away, or choose another target",
        )


def _nearest_folder(target: str) -> str:
    """`target`, or the nearest folder above it that exists."""
    folder = target
    while not os.path.lexists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def _check_entries(target: str, names: Sequence[str], *, force: bool) -> None:
    if not force and any(not is_leftover(target, entry) for entry in os.listdir(target)):
        raise RefusedError(f"{target} is not empty", hint="choose another target, or --force to write over it")
    for name in names:
        _check_place(target, name)


def _check_place(target: str, name: str) -> None:
    """Refuse a folder in the file's place, and anything else in the place of a folder that it goes into."""
    if os.path.isdir(os.path.join(target, name)):
        raise RefusedError(f"{name} in {target} is a folder, and a file has to go there", hint="move it away")
    folder = os.path.dirname(name)
    while folder:
        try:
            if not stat.S_ISDIR(os.stat(os.path.join(target, folder)).st_mode):
                raise RefusedError(f"{folder} in {target} is a file, and a folder has to go there", hint="move it away")
            return
        except (FileNotFoundError, NotADirectoryError):
            folder = os.path.dirname(folder)
