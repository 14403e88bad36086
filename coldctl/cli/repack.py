"""`coldctl repack`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import DryRun, Json, Order, Quiet, size
from coldctl.cli.room import require_room_for_numpy
from coldctl.engines import NAMES

EXIT_STATUS = exit_status(
    code_0="every file is in place under its final name",
    code_3="target in use or not empty, or --loader refuses the layout",
    code_6="nothing appeared under a final name",
)


def command(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The checkpoint to read; it is never changed.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder to write.")],
    align: Annotated[
        Literal["page", "every"],
        typer.Option(help="page: by the order of the tensors. every: each tensor on a page, with filler tensors."),
    ] = "page",
    order: Annotated[Order, typer.Option(help="Order of the tensors inside each alignment group.")] = "name",
    shard_size: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Largest shard, such as 5GiB. Default: shards as they are."),
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Refuse a layout that this engine or loader is known to refuse: {', '.join(NAMES)}.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands in the target.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Copy a checkpoint into a layout that loads fast.

    \b
    Examples:
      coldctl repack ./model ./model-aligned
      coldctl repack ./model ./model-aligned --dry-run
      coldctl repack ./model ./model-aligned --shard-size 8GiB --order layers
      coldctl repack ./model ./model-aligned --align every --loader vllm

    The files are plain safetensors that load wherever the source does, aligned by their order and a padded header,
    preallocated, with digests in coldctl.json. Nothing appears under a final name before it is whole.
    """
    require_room_for_numpy()
    from coldctl.jobs.repack import RepackOptions, repack
    from coldctl.report.text.repack import render

    console: Console = context.obj
    options = RepackOptions(
        source=source,
        target=target,
        align=align,
        order=order,
        shard_size_bytes=shard_size,
        loader=loader,
        force=force,
        dry_run=dry_run,
    )
    with console.events(json=json, quiet=quiet) as events:
        result = repack(options, events)
    return console.show(result, render, 0)
