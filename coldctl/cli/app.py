"""The typer application: the commands, their names, and how their options read the environment."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from coldctl import __version__
from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.invocation import COMMANDS
from coldctl.cli.output import write_stdout
from coldctl.cli.variables import unknown_variables
from coldctl.errors import EnvironmentLacksError, UsageError

# Set by the shell's completion script, which typer answers to.
_COMPLETION = "_COLDCTL_COMPLETE"
_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")

_ENVIRONMENT = """\b
Environment (every option of a command also reads the variable that its help names):
  COLDCTL_DEBUG=1              print tracebacks
  COLDCTL_PROGRESS_SECONDS=10  seconds between progress lines off a terminal
  COLDCTL_LOG_FORMAT=text      text or json (JSON Lines on stderr)
  COLDCTL_NATIVE=auto          compiled kernels: auto, on (fail without them) or off
  NO_COLOR=1                   no colour on a terminal"""


def call(arguments: Sequence[str], console: Console) -> int:
    """Parse `arguments`, run the command they name, and return its exit code. Without any, help goes to stderr.

    Raises what the command raises, and click's exceptions (see `coldctl.cli.failures`) for a bad command line.
    """
    command: Any = typer.main.get_command(build())
    if os.environ.get(_COMPLETION):
        return _complete(command)
    if not arguments:
        typer.echo(command.get_help(command.make_context("coldctl", [], resilient_parsing=True)), err=True)
        return 2
    for remark in unknown_variables(os.environ, _options(command)):
        console.when_begun(remark)
    code = _main(command, arguments, console)
    if code == 1 and any(word in _COMPLETION_OPTIONS for word in takewhile(_is_option, arguments)):
        raise EnvironmentLacksError("no shell that typer can complete for", hint="run it from bash, zsh or fish")
    return code


def _complete(command: Any) -> int:
    """Answer the shell's completion script."""
    try:
        code = _main(command, [], None)
    except (KeyError, ValueError):
        # What the script leaves in COMP_WORDS and COMP_CWORD.
        code = 1
    if code:
        raise UsageError(
            f"{_COMPLETION} is set to {os.environ[_COMPLETION]!r}, and no completion script asks that",
            hint=f"unset {_COMPLETION}",
        )
    return 0


def _main(command: Any, arguments: Sequence[str], console: Console | None) -> int:
    # What typer prints itself goes out as our own text does: typer would make exit code 1 of a reader that has gone.
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            code = command.main(args=list(arguments), prog_name="coldctl", standalone_mode=False, obj=console)
    except SystemExit as end:
        code = end.code
    finally:
        write_stdout(printed.getvalue())
    return code if isinstance(code, int) else 0


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _options(group: Any) -> dict[str, list[str]]:
    """The names of the options that read variables, by command."""
    return {
        name: [option.opts[0].lstrip("-") for option in command.params if option.param_type_name == "option"]
        for name, command in group.commands.items()
    }


def build() -> typer.Typer:
    """The application, with one command for each name in `COMMANDS`."""
    # rich's markup would reflow the examples, and colour the help in pipes where GITHUB_ACTIONS is set.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(epilog=f"{_ENVIRONMENT}\n\n{exit_status()}")(_coldctl)
    for name in COMMANDS:
        module = import_module(f"coldctl.cli.{name}")
        variables = {"auto_envvar_prefix": f"COLDCTL_{name.upper()}"}
        app.command(name, cls=_Command, epilog=module.EXIT_STATUS, context_settings=variables)(module.command)
    return app


class _Command(TyperCommand):
    """typer's command, but that no variable asks for its help, and that its usage has PATH where typer has {PATH}."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.allow_from_autoenv = False
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


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
      coldctl fp8 ./Llama-3-8B --report
      coldctl verify ./Llama-3-8B-aligned
      coldctl prewarm /models/Llama-3-8B-aligned
      coldctl status /models/Llama-3-8B-aligned
      coldctl evict /models/old-model
    """
