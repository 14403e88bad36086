"""`coldctl verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import CheckpointPath, Json, Quiet
from coldctl.cli.room import require_room_for_numpy
from coldctl.results.verify import VerifyResult

EXIT_STATUS = exit_status(
    code_0="no errors; warnings do not count",
    code_1="errors were found",
    code_5="something could not be read, and so not judged",
)


def command(
    context: typer.Context,
    path: CheckpointPath,
    digests: Annotated[
        bool,
        typer.Option("--digests/--no-digests", help="Hash every tensor and compare with coldctl.json."),
    ] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Judge headers, index, sizes, digests and alignment.

    \b
    Examples:
      coldctl verify ./model
      coldctl verify ./model/model-00001-of-00004.safetensors
      coldctl verify ./model --no-digests
      coldctl verify ./model --json | jq '.findings[]'

    Each finding names its rule, file, tensor and remedy. Digests are checked where coldctl.json is there to tell
    them. Bad alignment and extents are warnings (layout.misaligned, layout.fragmented), which do not change the
    exit code.
    """
    require_room_for_numpy()
    from coldctl.jobs.verify import VerifyOptions, verify
    from coldctl.report.text.verify import render

    console: Console = context.obj
    with console.events(json=json, quiet=quiet) as events:
        result = verify(VerifyOptions(path=path, digests=digests), events)
    return console.show(result, render, _exit_code(result))


def _exit_code(result: VerifyResult) -> int:
    if result.errors:
        return 1
    return 5 if result.unjudged else 0
