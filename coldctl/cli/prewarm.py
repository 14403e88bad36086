"""`coldctl prewarm`."""

from __future__ import annotations

from typing import Annotated

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import CheckpointPath, DryRun, Json, Order, Quiet
from coldctl.results.pages import WarmResult

EXIT_STATUS = exit_status(
    code_0='warm, or the budget stopped it ("complete": false)',
    code_3="bytes unreadable, --strict or --all-or-nothing not met",
)


def command(
    context: typer.Context,
    path: CheckpointPath,
    order: Annotated[Order, typer.Option(help="Which tensors are read first.")] = "name",
    budget: Annotated[
        str,
        typer.Option(
            metavar="auto|none|SHARE|SIZE",
            help="Most bytes to read in: auto (from memory and cgroup limits), none, 60%, 40GiB.",
        ),
    ] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="INTEGER", help="Most threads to read with. Default: found by throughput."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 when the budget stopped it.")] = False,
    all_or_nothing: Annotated[
        bool, typer.Option("--all-or-nothing", help="Read nothing when not all of it fits the budget.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Bring a checkpoint into the page cache, within a memory budget.

    \b
    Examples:
      coldctl prewarm /models/llama
      coldctl prewarm /models/llama --budget 40GiB --order layers
      coldctl prewarm /models/llama --strict
      coldctl prewarm /models/llama --dry-run

    Only what is missing is read; a warm checkpoint is left alone. The kernel may take pages back at any time, and
    loaders that read with direct I/O gain nothing from a warm cache.
    """
    from coldctl.jobs.prewarm import PrewarmOptions, prewarm
    from coldctl.report.text.prewarm import render

    console: Console = context.obj
    options = PrewarmOptions(
        path=path,
        order=order,
        budget=budget,
        jobs=jobs,
        all_or_nothing=all_or_nothing,
        dry_run=dry_run,
    )
    with console.events(json=json, quiet=quiet) as events:
        result = prewarm(options, events)
    return console.show(result, render, _exit_code(result, strict))


def _exit_code(result: WarmResult, strict: bool) -> int:
    return 3 if result.failed or (strict and not result.complete) else 0
