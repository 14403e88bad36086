"""What a command line asks for, read before it is parsed: a parse error too must be told in the form asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldctl.cli.settings import is_true

# Each is a module beside this one, with `command` (what typer calls) and `EXIT_STATUS` (the end of its help).
COMMANDS = ("repack", "fp8", "verify", "prewarm", "evict", "status", "bench")


@dataclass(frozen=True, slots=True)
class Invocation:
    """`command` is null when none of ours is named; `json` says that stdout is to carry one JSON document."""

    command: str | None
    json: bool


def read_invocation(arguments: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """The invocation that `arguments` (without the program's name) and `environ` mean."""
    words = list(arguments)
    options = words[: words.index("--")] if "--" in words else words
    named = next((word for word in words if not word.startswith("-")), None)
    command = named if named in COMMANDS else None
    from_variable = command is not None and is_true(environ.get(f"COLDCTL_{command.upper()}_JSON", ""))
    return Invocation(command, "--json" in options or from_variable)
