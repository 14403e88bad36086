"""`coldctl fp8`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import DryRun, Json, Order, Quiet
from coldctl.cli.room import require_room_for_numpy

EXIT_STATUS = exit_status(
    code_0="every file is in place, or the report has no objection",
    code_1="--report: it would be refused",
    code_3="too much lost, to be read wrong, or target in use",
    code_6="nothing appeared under a final name",
)


def command(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The checkpoint to read; it is never changed.")],
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="The folder to write. A report needs none.")
    ] = None,
    for_: Annotated[
        Literal["raw", "compressed-tensors", "coldctl", "deepseek"],
        typer.Option("--for", envvar="COLDCTL_FP8_FOR", help="Whose way to store FP8."),
    ] = "raw",
    format: Annotated[Literal["e4m3", "e5m2"], typer.Option(help="Which FP8.")] = "e4m3",
    tensors: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Those whose names it finds. Default: embeddings and head."),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Most relative error of a tensor. Default: 0.035 for raw, else 0.04."),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Measure what would be lost, and write nothing.")] = False,
    allow_nonfinite: Annotated[
        bool, typer.Option("--allow-nonfinite", help="Let NaN through, and make infinity the largest number.")
    ] = False,
    align: Annotated[
        Literal["page", "every"],
        typer.Option(help="page: by the order of the tensors. every: each tensor on a page, with filler tensors."),
    ] = "page",
    order: Annotated[Order, typer.Option(help="Order of the tensors inside each alignment group.")] = "name",
    force: Annotated[bool, typer.Option("--force", help="Replace what stands in the target.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Store embeddings and head in FP8, half the size, once the loss is known.

    \b
    Examples:
      coldctl fp8 ./model --report
      coldctl fp8 ./model ./model-fp8
      coldctl fp8 ./model ./model-fp8 --for compressed-tensors
      coldctl fp8 ./model ./model-fp8 --for coldctl --tensors 'embed_tokens'

    raw has FP8 in place of the weights, for engines that cast on load; the others have scales. The rest of the
    checkpoint comes along as with repack. What an engine would load and take for something else is refused.
    """
    require_room_for_numpy()
    from coldctl.jobs.fp8 import Fp8Options, convert_fp8
    from coldctl.report.text.fp8 import render

    console: Console = context.obj
    options = Fp8Options(
        source=source,
        target=target,
        convention=for_,
        format=format,
        tensors=tensors,
        max_error=max_error,
        report=report,
        allow_nonfinite=allow_nonfinite,
        align=align,
        order=order,
        force=force,
        dry_run=dry_run,
    )
    with console.events(json=json, quiet=quiet) as events:
        result = convert_fp8(options, events)
    return console.show(result, render, 1 if result.objections else 0)
