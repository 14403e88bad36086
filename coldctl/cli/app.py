"""The typer application: the commands, their names, and how their options read the environment."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Annotated

import typer

from coldctl import __version__
from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.invocation import COMMANDS
from coldctl.cli.output import write_stdout

# Set by the shell's completion script, which typer answers to.
_COMPLETION = "_COLDCTL_COMPLETE"

_ENVIRONMENT = """\b
Environment (every option of a command also reads the variable that its help names):
  COLDCTL_DEBUG=1              print tracebacks
  COLDCTL_PROGRESS_SECONDS=10  seconds between progress lines off a terminal
  COLDCTL_LOG_FORMAT=text      text or json (JSON Lines on stderr)
  NO_COLOR=1                   no colour on a terminal"""


def call(arguments: Sequence[str], console: Console) -> int:
    """Parse `arguments`, run the command they name, and return its exit code. Without any, help goes to stderr.

    Raises what the command raises, and click's exceptions (see `coldctl.cli.failures`) for a bad command line.
    """
    command = typer.main.get_command(build())
    if not arguments and _COMPLETION not in os.environ:
        typer.echo(command.get_help(command.make_context("coldctl", [], resilient_parsing=True)), err=True)
        return 2
    # What typer prints itself goes out as our own text does: typer would make exit code 1 of a reader that has gone.
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            code = command.main(args=list(arguments), prog_name="coldctl", standalone_mode=False, obj=console)
    finally:
        write_stdout(printed.getvalue())
    return code if isinstance(code, int) else 0


def build() -> typer.Typer:
    """The application, with one command for each name in `COMMANDS`."""
    # rich's markup would reflow the examples, and colour the help in pipes where GITHUB_ACTIONS is set.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(epilog=f"{_ENVIRONMENT}\n\n{exit_status()}")(_coldctl)
    for name in COMMANDS:
        module = import_module(f"coldctl.cli.{name}")
        variables = {"auto_envvar_prefix": f"COLDCTL_{name.upper()}"}
        app.command(name, epilog=module.EXIT_STATUS, context_settings=variables)(module.command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        write_stdout(f"coldctl {__version__}\n")
        raise typer.Exit


def _coldctl(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Prepare LLM checkpoints for fast cold starts: lay them out, check them, warm them, look at them.

    \b
    Examples:
      coldctl repack ./Llama-3-8B ./Llama-3-8B-aligned
      coldctl verify ./Llama-3-8B-aligned
      coldctl prewarm /models/Llama-3-8B-aligned
      coldctl status /models/Llama-3-8B-aligned
      coldctl evict /models/old-model
    """
