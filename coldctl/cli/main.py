"""The first acts of a run, before anything slow is imported: sound descriptors, then the signals."""

from __future__ import annotations

import os
import sys

from coldctl.cli import signals


def main() -> int:
    """Run the command that `sys.argv` names and return the exit code. Must be called in the main thread."""
    _keep_standard_descriptors()
    stop = signals.install()
    from coldctl.cli.run import run

    return run(sys.argv[1:], stop)


def _keep_standard_descriptors() -> None:
    """Open /dev/null where a standard stream was closed (`>&-`), before a weight file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
