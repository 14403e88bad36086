"""status: what a checkpoint looks like from below: size, residency, extents and alignment, file by file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from coldctl.errors import from_os_error
from coldctl.events import NULL, Events
from coldctl.jobs.residency import Totals, open_measured
from coldctl.loader.format import manifest
from coldctl.loader.format.checkpoint import Shard
from coldctl.loader.format.extents import extents
from coldctl.loader.format.layout import is_filler, on_page
from coldctl.loader.host.mounts import filesystem_of
from coldctl.loader.pages.residency import Residency
from coldctl.results.pages import StatusFile, StatusResult

MAP_CELLS = 32


@dataclass(frozen=True, slots=True)
class StatusOptions:
    path: str


def status(options: StatusOptions, events: Events = NULL) -> StatusResult:
    """Look at the checkpoint at `options.path`. Reads headers only, and changes no page of it but those.

    Raises InputError for what is no checkpoint, EnvironmentLacksError for what may not be read.
    """
    checkpoint, residency = open_measured(options.path, cells=MAP_CELLS)
    files = []
    for shard in checkpoint.shards:
        files.append(_file(shard, residency[shard.name]))
        events.raise_if_stopped()
    totals = Totals.of(residency.values())
    return StatusResult(
        path=options.path,
        filesystem=filesystem_of(checkpoint.shards[0].path),
        bytes=checkpoint.bytes,
        resident_bytes=totals.resident_bytes,
        residency_method=totals.method,
        residency_bound_bytes=totals.bound_bytes,
        residency_reason=totals.reason,
        tensors=sum(file.tensors for file in files),
        manifest=os.path.exists(os.path.join(checkpoint.root, manifest.NAME)),
        ignored=list(checkpoint.ignored),
        files=files,
    )


def _file(shard: Shard, residency: Residency) -> StatusFile:
    try:
        found = extents(shard.path)
    except OSError as error:
        raise from_os_error(error, "look at", shard.path) from error
    aligned = on_page(shard.header.tensors)
    return StatusFile(
        path=shard.name,
        size_bytes=shard.size_bytes,
        resident_bytes=residency.resident_bytes,
        residency_method=residency.method,
        residency_bound_bytes=residency.bound_bytes,
        residency_map=residency.cells,
        residency_reason=residency.reason,
        extents=found.extents,
        ideal_extents=found.ideal_extents,
        contiguous=found.contiguous,
        extents_reason=found.reason,
        aligned_tensors=aligned.tensors,
        aligned_bytes=aligned.bytes,
        tensors=sum(not is_filler(tensor) for tensor in shard.header.tensors),
    )
