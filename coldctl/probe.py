"""The console entry. What must answer at once is answered here, before typer is imported."""

from __future__ import annotations

import os
import signal
import sys

_EARLY = (signal.SIGINT, signal.SIGTERM)

# The signals that came before anybody could act on them: one at most.
_asked: list[int] = []


def main() -> int:
    """Run coldctl on `sys.argv` and return its exit code. Must be called in the main thread.

    SIGINT and SIGTERM never end the process by their default action from the first statement on, and do nothing more
    once this has returned: the result is out, and what follows is the end of the interpreter.
    """
    for number in _EARLY:
        signal.signal(number, _remember)
    try:
        return _answer()
    finally:
        # The interpreter puts the default action back when it ends, but leaves alone what is ignored.
        for number in _EARLY:
            signal.signal(number, signal.SIG_IGN)


def _answer() -> int:
    if sys.argv[1:2] in (["--version"], ["-V"]) and _print_version():
        return 0
    try:
        from coldctl.cli.main import main as cli

        return cli(_asked)
    except MemoryError:
        # Too little for what tells all other failures: this much has no parts that must be imported.
        os.write(2, b"coldctl: error: out of memory\n")
        return 5
    except Exception:
        # Left to itself, Python would exit with 1, which means that coldctl judged, and that the answer is no.
        sys.excepthook(*sys.exc_info())
        return 70


def _remember(number: int, _: object) -> None:
    """Keep the first signal for the command line, which acts on it when it is there; end at once on a second one."""
    if _asked:
        os._exit(128 + number)
    _asked.append(number)


def _print_version() -> bool:
    """Whether the version could be printed; where not, the command line says why, with the right exit code."""
    from coldctl import __version__

    try:
        os.write(1, f"coldctl {__version__}\n".encode())
    except OSError:
        return False
    return True
