"""One run: settings, command line, job; whatever goes wrong on the way becomes an exit code here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from coldctl.cli.console import Console
from coldctl.cli.invocation import read_invocation
from coldctl.cli.settings import read_settings
from coldctl.cli.signals import Stop


def run(arguments: Sequence[str], stop: Stop) -> int:
    """Run the command that `arguments` name and return the exit code. Nothing but SystemExit gets out."""
    console = Console(read_invocation(arguments, os.environ), stop)
    try:
        console.configure(read_settings(os.environ))
        from coldctl.cli.app import call

        return call(arguments, console)
    except Exception as error:
        return console.fail(error)
