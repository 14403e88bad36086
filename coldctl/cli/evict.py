"""`coldctl evict`."""

from __future__ import annotations

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import CheckpointPath, DryRun, Json, Quiet

EXIT_STATUS = exit_status(code_0="no page of it is in the cache", code_3="pages stayed in memory; the report says why")


def command(
    context: typer.Context,
    path: CheckpointPath,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Take a checkpoint out of the page cache, and nothing else.

    \b
    Examples:
      coldctl evict /models/old-model
      coldctl evict /models/old-model --dry-run

    No root and no drop_caches is needed. Pages that a process maps or has locked stay, and are counted.
    """
    from coldctl.jobs.evict import EvictOptions, evict
    from coldctl.report.text.evict import render

    console: Console = context.obj
    with console.events(json=json, quiet=quiet) as events:
        result = evict(EvictOptions(path=path, dry_run=dry_run), events)
    nothing_seen = result.resident_after_bytes == 0
    return console.show(result, render, 0 if nothing_seen or dry_run else 3)
