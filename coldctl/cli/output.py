"""Standard output: written whole or not at all as far as we can tell, and never a traceback about it.

Everything goes straight to the descriptor. Python's buffer would keep what could not be written and try again when
the interpreter ends, with a message and an exit code of its own.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from coldctl.errors import ColdctlError, EnvironmentLacksError, NoSpaceError
from coldctl.report.text.style import Style

_STDOUT = 1


def write_stdout(text: str) -> None:
    """Write `text`. A closed stdout and a reader that has gone away are no errors: nobody wants the text.

    Raises NoSpaceError or EnvironmentLacksError when it cannot be written for another reason.
    """
    if sys.__stdout__ is None:
        return
    try:
        _write_all(text.encode(sys.__stdout__.encoding, "backslashreplace"))
    except BrokenPipeError:
        return
    except OSError as error:
        raise _unwritable(error) from error


def stdout_style() -> Style:
    """What the place behind stdout can show."""
    if sys.__stdout__ is None:
        return Style(colour=False, unicode=False)
    return Style(colour=may_colour(_STDOUT), unicode=sys.__stdout__.encoding.lower().startswith("utf"))


def may_colour(descriptor: int) -> bool:
    """Colour only on a terminal that is not dumb, and without NO_COLOR (https://no-color.org)."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(_STDOUT, rest) :]
        except BlockingIOError:
            # A parent that made its end of the pipe non-blocking made ours so too.
            select.select([], [_STDOUT], [])


def _unwritable(error: OSError) -> ColdctlError:
    message = f"cannot write standard output: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(message, hint="free space where the output goes")
    return EnvironmentLacksError(message)
