"""repack: write a checkpoint anew, contiguous and page-aligned, with digests, without touching the source."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coldctl import engines
from coldctl.errors import RefusedError, UsageError, from_os_error
from coldctl.events import NULL, Events
from coldctl.jobs.repack import record
from coldctl.jobs.repack.apart import check_apart, check_harmless
from coldctl.jobs.repack.names import check_distinct, check_text, of_index
from coldctl.jobs.repack.shards import plan_shards, reading_order
from coldctl.jobs.repack.target import check_target
from coldctl.loader import plan, reader
from coldctl.loader.atomic import Staging
from coldctl.loader.format import config, layout, manifest, sidecars
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.loader.format.extents import extents
from coldctl.loader.format.layout import ALIGNS, Align
from coldctl.loader.host.memory import PeakAnon
from coldctl.loader.order import ORDERS, Order, order_facts
from coldctl.loader.regular import open_regular
from coldctl.loader.sink import Digests, Tee
from coldctl.loader.writer import NewShard, ShardWriter
from coldctl.results.facts import Extents, SkippedFile
from coldctl.results.repack import RepackedFile, RepackResult
from coldctl.units import MIB


@dataclass(frozen=True, slots=True)
class RepackOptions:
    """`source`: a checkpoint; `target`: the folder to make. `shard_size_bytes` cuts anew; None keeps the shards.

    `loader` names an engine (`coldctl.engines`) whose known refusal of the layout stops the repack before it begins.
    """

    source: str
    target: str
    align: Align = "page"
    order: Order = "name"
    shard_size_bytes: int | None = None
    loader: str | None = None
    force: bool = False
    dry_run: bool = False


def repack(options: RepackOptions, events: Events = NULL) -> RepackResult:
    """Write `options.source` to `options.target`; nothing appears there under its final name unless all does.

    Raises UsageError, InputError (FaultError for a broken source, ChangedError for one that changed meanwhile),
    RefusedError, UnreadableError, EnvironmentLacksError, NoSpaceError, StoppedError. Success promises that every byte
    was synced; not that the filesystem could lay it contiguously (the extents in the result say that).
    """
    start_seconds = time.perf_counter()
    _check(options)
    with PeakAnon() as memory:
        checkpoint = open_checkpoint(options.source)
        check_apart(checkpoint, options.target)
        job = _plan(checkpoint, options)
        try:
            files, replaced = (_foresee if options.dry_run else _write)(job, options, events)
        except OSError as error:
            raise from_os_error(error, "write to", options.target) from error
    removed = sorted(set(replaced) - set(job.names))
    return _result(job, options, files, removed, time.perf_counter() - start_seconds, memory.peak_bytes)


class _Job(NamedTuple):
    checkpoint: Checkpoint
    shards: list[NewShard]
    sidecars: list[str]
    skipped: list[SkippedFile]

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
    def tensor_bytes(self) -> int:
        return sum(home.placed.nbytes for shard in self.shards for home in shard.homes if home.source is not None)

    @property
    def size_bytes(self) -> int:
        """What the target needs; the sizes of manifest and index are not known yet, and small."""
        root = self.checkpoint.root
        return sum(shard.size_bytes for shard in self.shards) + sum(
            os.path.getsize(os.path.join(root, name)) for name in self.sidecars
        )


def _check(options: RepackOptions) -> None:
    if options.align not in ALIGNS:
        raise UsageError(f"no such alignment: {options.align!r}", hint=f"one of {', '.join(ALIGNS)}")
    if options.order not in ORDERS:
        raise UsageError(f"no such order: {options.order!r}", hint=f"one of {', '.join(ORDERS)}")
    if options.loader is not None and engines.by_name(options.loader) is None:
        raise UsageError(f"no such loader: {options.loader!r}", hint=f"one of {', '.join(engines.NAMES)}")
    if options.shard_size_bytes is not None and options.shard_size_bytes < 1:
        raise UsageError("a shard must hold at least one byte")
    if options.target.endswith(".safetensors") and not os.path.isdir(options.target):
        raise UsageError(
            f"the target is a folder, and {options.target} is named like a file",
            hint="name the folder; the files in it are named as in the source",
        )


def _plan(checkpoint: Checkpoint, options: RepackOptions) -> _Job:
    shards = plan_shards(checkpoint, options.align, options.order, options.shard_size_bytes)
    found, skipped = ([], []) if checkpoint.single_file else _sidecars(checkpoint)
    job = _Job(checkpoint, shards, found, skipped)
    check_text(job.names_in_json)
    check_distinct(job.names)
    engine = engines.by_name(options.loader) if options.loader else None
    model_type = config.model_type(checkpoint.root)
    if engine and job.fillers and engine.refuses_fillers(model_type):
        raise RefusedError(
            f"{engine.name} {engine.versions} is known to fail on fillers in a model of type {model_type}",
            hint="use --align page, which adds no tensors",
        )
    return job


def _sidecars(checkpoint: Checkpoint) -> tuple[list[str], list[SkippedFile]]:
    own = {shard.name for shard in checkpoint.shards} | {manifest.NAME}
    if checkpoint.index_name is not None:
        own.add(checkpoint.index_name)
    return sidecars.find(checkpoint.root, own)


def _write(job: _Job, options: RepackOptions, events: Events) -> tuple[list[RepackedFile], list[str]]:
    """The new files, and the names of the old ones that made place for them."""
    digests = Digests(sums=True)
    with Staging(options.target) as staging:
        replaced = _check_target(job, options)
        events.begin("repacking", job.tensor_bytes)
        files = [_write_shard(shard, job.checkpoint, staging, digests, events) for shard in job.shards]
        events.end()
        _write_the_rest(job, options, staging, digests, events)
        events.raise_if_stopped()
        staging.commit(job.names, replace=replaced, events=events)
    for name in staging.unswept:
        events.note(f"{name} in {options.target} cannot be removed, or is not coldctl's in spite of its name")
    return files, replaced


def _check_target(job: _Job, options: RepackOptions) -> list[str]:
    replaced = check_target(options.target, job.names, job.size_bytes, force=options.force)
    check_harmless(job.checkpoint, job.sidecars, options.target, job.names, replaced)
    return replaced


def _write_shard(
    shard: NewShard, checkpoint: Checkpoint, staging: Staging, digests: Digests, events: Events
) -> RepackedFile:
    descriptor = staging.create(shard.name)
    try:
        writer = ShardWriter(shard, descriptor)
        reader.read(plan.tensor_segments(reading_order(shard, checkpoint)), Tee(digests, writer), events)
        os.fsync(descriptor)
    except OSError as error:
        raise from_os_error(error, "write", shard.name) from error
    finally:
        os.close(descriptor)
    return _file(shard, extents(staging.path(shard.name)), preallocated=writer.preallocated)


def _write_the_rest(job: _Job, options: RepackOptions, staging: Staging, digests: Digests, events: Events) -> None:
    """Sidecars, manifest, index."""
    for name in job.sidecars:
        _copy(os.path.join(job.checkpoint.root, name), name, staging, events)
    shards: Literal["kept"] | int = "kept" if options.shard_size_bytes is None else options.shard_size_bytes
    written = manifest.Layout(options.align, options.order, shards, "keep")
    staging.put(manifest.NAME, manifest.encode(record.manifest_of(job.shards, written, digests)))
    if job.index_name is not None:
        staging.put(job.index_name, record.index(job.shards, job.checkpoint.index_metadata))


def _copy(path: str, name: str, staging: Staging, events: Events) -> None:
    events.raise_if_stopped()
    try:
        descriptor, _ = open_regular(path)
    except OSError as error:
        raise from_os_error(error, "read", path) from error
    with open(descriptor, "rb") as source, open(staging.create(name), "wb") as target:
        try:
            while piece := source.read(MIB):
                target.write(piece)
                events.raise_if_stopped()
        except OSError as error:
            raise from_os_error(error, "copy", path) from error


def _foresee(job: _Job, options: RepackOptions, _: Events) -> tuple[list[RepackedFile], list[str]]:
    """What `_write` would return."""
    replaced = _check_target(job, options)
    not_written = Extents(None, None, None, None, "not written: a dry run")
    return [_file(shard, not_written, preallocated=None) for shard in job.shards], replaced


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


def _result(
    job: _Job,
    options: RepackOptions,
    files: list[RepackedFile],
    removed: list[str],
    seconds: float,
    peak_anon_bytes: int,
) -> RepackResult:
    homes = [home for shard in job.shards for home in shard.homes if home.source is not None]
    aligned = [home for home in homes if home.offset_bytes % layout.PAGE_BYTES == 0]
    model_type = config.model_type(job.checkpoint.root)
    return RepackResult(
        source=options.source,
        target=options.target,
        align=options.align,
        order=options.order,
        order_facts=order_facts(options.order, job.checkpoint.tensors()),
        dry_run=options.dry_run,
        bytes=sum(home.placed.nbytes for home in homes),
        tensors=len(homes),
        files=files,
        aligned_tensors=len(aligned),
        aligned_bytes=sum(home.placed.nbytes for home in aligned),
        fillers=job.fillers,
        every_adds_fillers=sum(
            layout.fillers_for_every([home.placed for home in shard.homes if home.source is not None])
            for shard in job.shards
        ),
        refused_by=[engine.name for engine in engines.ENGINES if engine.refuses_fillers(model_type)],
        sidecars=job.sidecars,
        skipped=job.skipped,
        removed=removed,
        seconds=seconds,
        peak_anon_bytes=peak_anon_bytes,
    )
