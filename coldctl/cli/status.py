"""`coldctl status`."""

from __future__ import annotations

import typer

from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.options import CheckpointPath, Json, Quiet

EXIT_STATUS = exit_status(code_0="looked at, warm or cold")


def command(context: typer.Context, path: CheckpointPath, json: Json = False, quiet: Quiet = False) -> int:
    """Show what is in the page cache, alignment and extents.

    \b
    Examples:
      coldctl status /models/llama
      coldctl status /models/llama --json | jq .resident_bytes

    Nothing is read but headers. The map shows each file from its first bytes to its last.
    """
    from coldctl.jobs.status import StatusOptions, status
    from coldctl.report.text.status import render

    console: Console = context.obj
    with console.events(json=json, quiet=quiet) as events:
        result = status(StatusOptions(path=path), events)
    return console.show(result, render, 0)
