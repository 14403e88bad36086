"""The first acts of a run, before anything slow is imported: sound descriptors, then the signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from coldctl.cli import signals


def main(asked: Sequence[int] = ()) -> int:
    """Run the command that `sys.argv` names and return the exit code. Must be called in the main thread.

    `asked`: where signals are kept that came before this was called.
    """
    _keep_standard_descriptors()
    # OpenBLAS starts a thread for each CPU when numpy is imported, takes memory for each of them, and raises SIGINT
    # where it may not start them. numpy only scans bytes here, which OpenBLAS has no part in.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stop = signals.install(asked)
    from coldctl.cli.run import run

    return run(sys.argv[1:], stop)


def _keep_standard_descriptors() -> None:
    """Open /dev/null where a standard stream was closed (`>&-`), before a weight file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
