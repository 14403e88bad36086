"""Writing a whole checkpoint anew: shards from a plan, sidecars, manifest and index, all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from coldctl.errors import from_os_error
from coldctl.events import Events
from coldctl.jobs.repack import record
from coldctl.jobs.repack.apart import check_harmless
from coldctl.jobs.repack.names import check_distinct, check_text, of_index
from coldctl.jobs.repack.shards import Member, reading_order
from coldctl.jobs.repack.target import check_target
from coldctl.loader import plan, reader
from coldctl.loader.atomic import Staging
from coldctl.loader.format import manifest, sidecars
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.format.extents import extents
from coldctl.loader.regular import open_regular
from coldctl.loader.sink import Digests, Sink, Tee
from coldctl.loader.writer import NewShard, ShardWriter
from coldctl.results.facts import Extents, SkippedFile
from coldctl.results.repack import RepackedFile
from coldctl.units import MIB


class Conversion(Protocol):
    """What becomes of tensors on their way from the old shards into the new ones."""

    def originals(self, members: list[Member]) -> list[Member]:
        """What is to be read of the old shards for these tensors of the new ones, in the same order."""

    def into(self, sink: Sink) -> Sink:
        """A sink for what is read, which gives `sink` what becomes of it, under the names of the old shards."""


class Unchanged:
    """Tensors arrive as they were."""

    def originals(self, members: list[Member]) -> list[Member]:
        return members

    def into(self, sink: Sink) -> Sink:
        return sink


class Rewrite(NamedTuple):
    """What is to be written of `checkpoint`: its new shards, the sidecars that come along, and what the manifest says
    of the layout. Where tensors change on their way, by `conversion`, `checkpoint` describes them as they will be.
    `edited` holds the new bytes of sidecars that do not stay as they are."""

    checkpoint: Checkpoint
    shards: list[NewShard]
    sidecars: list[str]
    skipped: list[SkippedFile]
    layout: manifest.Layout
    conversion: Conversion = Unchanged()
    edited: Mapping[str, bytes] = MappingProxyType({})

    @property
    def fillers(self) -> int:
        return sum(home.source is None for shard in self.shards for home in shard.homes)

    @property
    def names(self) -> list[str]:
        """Every file to be written, in the order in which they may appear: what loaders look for comes last."""
        shards = [shard.name for shard in self.shards]
        if self.index_name is None:
            return [*self.sidecars, manifest.NAME, *shards]
        return [*self.sidecars, *shards, manifest.NAME, self.index_name]

    @property
    def names_in_json(self) -> list[str]:
        return [shard.name for shard in self.shards] + ([self.index_name] if self.index_name else [])

    @property
    def index_name(self) -> str | None:
        return of_index(self.checkpoint, len(self.shards))

    @property
    def read_bytes(self) -> int:
        return sum(tensor.nbytes for shard in self.shards for _, tensor in self.originals(shard))

    @property
    def size_bytes(self) -> int:
        """What the target needs; the sizes of manifest and index are not known yet, and small."""
        return sum(shard.size_bytes for shard in self.shards) + sum(map(self._sidecar_bytes, self.sidecars))

    def originals(self, shard: NewShard) -> list[Member]:
        """What is read for `shard`, in the order of the old shards."""
        return self.conversion.originals(reading_order(shard, self.checkpoint))

    def _sidecar_bytes(self, name: str) -> int:
        if name in self.edited:
            return len(self.edited[name])
        return os.path.getsize(os.path.join(self.checkpoint.root, name))


def plan_rewrite(checkpoint: Checkpoint, shards: list[NewShard], layout: manifest.Layout) -> Rewrite:
    """With all sidecars of `checkpoint`. Raises RefusedError for names that JSON or the target could not hold."""
    found, skipped = ([], []) if checkpoint.single_file else _sidecars(checkpoint)
    rewrite = Rewrite(checkpoint, shards, found, skipped, layout)
    check_text(rewrite.names_in_json)
    check_distinct(rewrite.names)
    return rewrite


def write(
    rewrite: Rewrite, target: str, *, force: bool, events: Events, label: str
) -> tuple[list[RepackedFile], list[str]]:
    """The new files, and the names of the old ones that made place for them. `label` is what progress calls it.

    Nothing appears in `target` under its final name unless all does. Raises OSError, and what reading and writing do.
    """
    digests = Digests(sums=True)
    with Staging(target) as staging:
        replaced = _check_target(rewrite, target, force=force)
        events.begin(label, rewrite.read_bytes)
        files = [_write_shard(shard, rewrite, staging, digests, events) for shard in rewrite.shards]
        events.end()
        _write_the_rest(rewrite, staging, digests, events)
        events.raise_if_stopped()
        staging.commit(rewrite.names, replace=replaced, events=events)
    for name in staging.unswept:
        events.note(f"{name} in {target} cannot be removed, or is not coldctl's in spite of its name")
    return files, replaced


def foresee(rewrite: Rewrite, target: str, *, force: bool) -> tuple[list[RepackedFile], list[str]]:
    """What `write` would return."""
    replaced = _check_target(rewrite, target, force=force)
    not_written = Extents(None, None, None, None, "not written: a dry run")
    return [_file(shard, not_written, preallocated=None) for shard in rewrite.shards], replaced


def _sidecars(checkpoint: Checkpoint) -> tuple[list[str], list[SkippedFile]]:
    own = {shard.name for shard in checkpoint.shards} | {manifest.NAME}
    if checkpoint.index_name is not None:
        own.add(checkpoint.index_name)
    return sidecars.find(checkpoint.root, own)


def _check_target(rewrite: Rewrite, target: str, *, force: bool) -> list[str]:
    replaced = check_target(target, rewrite.names, rewrite.size_bytes, force=force)
    check_harmless(rewrite.checkpoint, rewrite.sidecars, target, rewrite.names, replaced)
    return replaced


def _write_shard(shard: NewShard, rewrite: Rewrite, staging: Staging, digests: Digests, events: Events) -> RepackedFile:
    descriptor = staging.create(shard.name)
    try:
        writer = ShardWriter(shard, descriptor)
        sink = rewrite.conversion.into(Tee(digests, writer))
        reader.read(plan.tensor_segments(rewrite.originals(shard)), sink, events)
        os.fsync(descriptor)
    except OSError as error:
        raise from_os_error(error, "write", shard.name) from error
    finally:
        os.close(descriptor)
    return _file(shard, extents(staging.path(shard.name)), preallocated=writer.preallocated)


def _write_the_rest(rewrite: Rewrite, staging: Staging, digests: Digests, events: Events) -> None:
    """Sidecars, manifest, index."""
    for name, content in rewrite.edited.items():
        staging.put(name, content)
    for name in rewrite.sidecars:
        if name in rewrite.edited:
            continue
        _copy(os.path.join(rewrite.checkpoint.root, name), name, staging, events)
    staging.put(manifest.NAME, manifest.encode(record.manifest_of(rewrite.shards, rewrite.layout, digests)))
    if rewrite.index_name is not None:
        staging.put(rewrite.index_name, record.index(rewrite.shards, rewrite.checkpoint.index_metadata))


def _copy(path: str, name: str, staging: Staging, events: Events) -> None:
    events.raise_if_stopped()
    try:
        source, _ = open_regular(path)
    except OSError as error:
        raise from_os_error(error, "read", path) from error
    with source, open(staging.create(name), "wb") as target:
        try:
            while piece := source.read(MIB):
                target.write(piece)
                events.raise_if_stopped()
        except OSError as error:
            raise from_os_error(error, "copy", path) from error


def _file(shard: NewShard, found: Extents, *, preallocated: bool | None) -> RepackedFile:
    return RepackedFile(
        path=shard.name,
        size_bytes=shard.size_bytes,
        extents=found.extents,
        ideal_extents=found.ideal_extents,
        contiguous=found.contiguous,
        extents_reason=found.reason,
        preallocated=preallocated,
    )
