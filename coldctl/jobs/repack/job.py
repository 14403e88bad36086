"""repack: write a checkpoint anew, contiguous and page-aligned, with digests, without touching the source."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal

from coldctl import engines
from coldctl.errors import RefusedError, UsageError, from_os_error
from coldctl.events import NULL, Events
from coldctl.jobs.repack.apart import check_apart
from coldctl.jobs.repack.rewrite import Rewrite, foresee, plan_rewrite, write
from coldctl.jobs.repack.shards import plan_shards
from coldctl.loader.format import config, layout, manifest
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.loader.format.layout import ALIGNS, Align
from coldctl.loader.host.memory import PeakAnon
from coldctl.loader.order import ORDERS, Order, order_facts
from coldctl.results.repack import RepackedFile, RepackResult


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
    check(options)
    with PeakAnon() as memory:
        checkpoint = open_checkpoint(options.source)
        check_apart(checkpoint, options.target)
        rewrite = _plan(checkpoint, options)
        files, removed = carry_out(rewrite, options, events, label="repacking")
    return result_of(rewrite, options, files, removed, time.perf_counter() - start_seconds, memory.peak_bytes)


def carry_out(
    rewrite: Rewrite, options: RepackOptions, events: Events, *, label: str
) -> tuple[list[RepackedFile], list[str]]:
    """The files that were, or in a dry run would be, written to the target, and the names of those that had to go."""
    try:
        if options.dry_run:
            files, replaced = foresee(rewrite, options.target, force=options.force)
        else:
            files, replaced = write(rewrite, options.target, force=options.force, events=events, label=label)
    except OSError as error:
        raise from_os_error(error, "write to", options.target) from error
    return files, sorted(set(replaced) - set(rewrite.names))


def check(options: RepackOptions) -> None:
    """Raises UsageError for options that make no sense."""
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


def _plan(checkpoint: Checkpoint, options: RepackOptions) -> Rewrite:
    shards = plan_shards(checkpoint, options.align, options.order, options.shard_size_bytes)
    cut: Literal["kept"] | int = "kept" if options.shard_size_bytes is None else options.shard_size_bytes
    rewrite = plan_rewrite(checkpoint, shards, manifest.Layout(options.align, options.order, cut, "keep"))
    engine = engines.by_name(options.loader) if options.loader else None
    model_type = config.model_type(checkpoint.root)
    if engine and rewrite.fillers and engine.refuses_fillers(model_type):
        raise RefusedError(
            f"{engine.name} {engine.versions} is known to fail on fillers in a model of type {model_type}",
            hint="use --align page, which adds no tensors",
        )
    return rewrite


def result_of(
    rewrite: Rewrite,
    options: RepackOptions,
    files: list[RepackedFile],
    removed: list[str],
    seconds: float,
    peak_anon_bytes: int,
) -> RepackResult:
    homes = [home for shard in rewrite.shards for home in shard.homes if home.source is not None]
    aligned = [home for home in homes if home.offset_bytes % layout.PAGE_BYTES == 0]
    model_type = config.model_type(rewrite.checkpoint.root)
    return RepackResult(
        source=options.source,
        target=options.target,
        align=options.align,
        order=options.order,
        order_facts=order_facts(options.order, rewrite.checkpoint.tensors()),
        dry_run=options.dry_run,
        bytes=sum(home.placed.nbytes for home in homes),
        tensors=len(homes),
        files=files,
        aligned_tensors=len(aligned),
        aligned_bytes=sum(home.placed.nbytes for home in aligned),
        fillers=rewrite.fillers,
        every_adds_fillers=sum(
            layout.fillers_for_every([home.placed for home in shard.homes if home.source is not None])
            for shard in rewrite.shards
        ),
        refused_by=[engine.name for engine in engines.ENGINES if engine.refuses_fillers(model_type)],
        sidecars=rewrite.sidecars,
        skipped=rewrite.skipped,
        removed=removed,
        seconds=seconds,
        peak_anon_bytes=peak_anon_bytes,
    )
