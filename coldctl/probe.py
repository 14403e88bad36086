"""The console entry. What must answer at once is answered here, before typer is imported."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run coldctl on `sys.argv` and return its exit code."""
    if sys.argv[1:2] in (["--version"], ["-V"]) and _print_version():
        return 0
    from coldctl.cli.main import main as cli

    return cli()


def _print_version() -> bool:
    """Whether the version could be printed; where not, the command line says why, with the right exit code."""
    from coldctl import __version__

    try:
        os.write(1, f"coldctl {__version__}\n".encode())
    except OSError:
        return False
    return True
