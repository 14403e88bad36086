"""The options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from coldctl.errors import UsageError
from coldctl.units import parse_share, parse_size

CheckpointPath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A safetensors file, a folder of them, or a hub-cache snapshot."),
]

Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as one JSON document on stdout.")]

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress and no notes on stderr. Errors are still printed."),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do none of it.")]

Order = Literal["name", "layers", "attention-first", "file"]


def size(text: str) -> int:
    """A size in bytes from the command line. Raises typer.BadParameter for all else."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise typer.BadParameter(f"{error.message}: {error.hint}" if error.hint else error.message) from error


def share(text: str) -> float:
    """A share from 0 to 1 from the command line. Raises typer.BadParameter for all else."""
    try:
        return parse_share(text)
    except UsageError as error:
        raise typer.BadParameter(f"{error.message}: {error.hint}" if error.hint else error.message) from error
