"""The target folder of a repack: what may be written there, and what of an older checkpoint has to go."""

from __future__ import annotations

import os

from coldctl.errors import InputError, NoSpaceError, RefusedError, UsageError
from coldctl.loader.atomic import TEMPORARY_PREFIX
from coldctl.loader.format import manifest, sidecars
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.format.locate import locate
from coldctl.units import format_size


def check_apart(source: Checkpoint, target: str) -> None:
    """Refuse a target that is the source, holds it, or lies in it. Raises UsageError."""
    real_source, real_target = os.path.realpath(source.root), os.path.realpath(target)
    common = os.path.commonpath([real_source, real_target])
    if real_target == real_source:
        raise UsageError(f"source and target are the same folder: {target}", hint="choose another target")
    if common == real_source and not source.single_file:
        raise UsageError(f"the target {target} lies inside the source", hint="choose a target outside it")
    if common == real_target:
        raise UsageError(f"the source lies inside the target {target}", hint="choose a target that does not hold it")


def check_target(target: str, names: list[str], size_bytes: int, *, force: bool) -> None:
    """Refuse a folder that holds something (unless forced), a folder in a file's place, and a disk that is too full.

    A target that is not there yet is fine, if there is room where it will be. Raises RefusedError, NoSpaceError, and
    OSError for a folder that cannot be looked into.
    """
    folder = _nearest_folder(target)
    if folder == target:
        _check_entries(target, names, force=force)
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    if size_bytes > free_bytes:
        raise NoSpaceError(
            f"{target} has {format_size(free_bytes)} free, and the new checkpoint needs {format_size(size_bytes)}"
        )


def outdated(target: str, names: list[str]) -> list[str]:
    """Shards, index and manifest of the checkpoint that is written over with `names`: beside the new ones they would
    mislead. Indexes come first, so that none outlives a shard that it names. Other files stay.

    Raises EnvironmentLacksError or UnreadableError when the old index cannot be read.
    """
    try:
        old = locate(target)
        if old.unreadable:
            raise old.unreadable[0]
        shards = [member.name for member in old.members]
    except InputError:
        shards = []  # no checkpoint stands there
    notes = [name for name in os.listdir(target) if sidecars.is_index_or_manifest(name)]
    return [*sorted(notes, key=lambda name: name == manifest.NAME), *(name for name in shards if name not in names)]


def _nearest_folder(target: str) -> str:
    """`target`, or the nearest folder above it that exists."""
    folder = target
    while not os.path.lexists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def _check_entries(target: str, names: list[str], *, force: bool) -> None:
    if not force and any(not entry.startswith(TEMPORARY_PREFIX) for entry in os.listdir(target)):
        raise RefusedError(f"{target} is not empty", hint="choose another target, or --force to write over it")
    for name in names:
        if os.path.isdir(os.path.join(target, name)):
            raise RefusedError(f"{name} in {target} is a folder, and a file has to go there", hint="move it away")
