"""The exit codes as `--help` tells them: the same text everywhere, with what a code means in this command beside it."""

from __future__ import annotations

_MEANINGS = {
    0: "done",
    1: "judged, and the answer is no",
    2: "usage: the command line or a variable makes no sense",
    3: "done in part, or refused to begin",
    4: "the input is not what it should be",
    5: "the environment lacks something (permission, a filesystem feature)",
    6: "no space",
    70: "a bug of coldctl",
    130: "stopped by SIGINT",
    143: "stopped by SIGTERM",
}


def meanings() -> dict[int, str]:
    """Every exit code and what it means in any command."""
    return dict(_MEANINGS)


def exit_status(**here: str) -> str:
    """The section for a command's help; `here` gives the meaning of some codes in it, as `code_3="…"`."""
    lines = ["\b", "Exit status:"]
    for code, meaning in _MEANINGS.items():
        lines.append(f"  {code:<5}{meaning}")
        own = here.get(f"code_{code}")
        if own is not None:
            lines.append(f"       here: {own}")
    return "\n".join(lines)
