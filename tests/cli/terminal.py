"""A terminal to run the program on."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from typing import Literal

from tests.cli.process import clean_environment


def on_a_terminal(
    *arguments: str, stream: Literal["stdout", "stderr"], environment: dict[str, str] | None = None
) -> tuple[str, str]:
    """What `python ARGUMENTS…` writes to `stream`, which is a terminal, and to the other one, which is a pipe."""
    primary, secondary = pty.openpty()
    variables = clean_environment({"COLUMNS": "100"} | (environment or {}))
    out, err = (secondary, subprocess.PIPE) if stream == "stdout" else (subprocess.PIPE, secondary)
    shown: list[bytes] = []
    with subprocess.Popen([sys.executable, *arguments], env=variables, text=True, stdout=out, stderr=err) as process:
        os.close(secondary)
        reader = threading.Thread(target=_read, args=(primary, shown))
        reader.start()
        stdout, stderr = process.communicate(timeout=60)
        reader.join(timeout=60)
    os.close(primary)
    assert process.returncode == 0
    return b"".join(shown).decode(), stderr if stream == "stdout" else stdout


def _read(primary: int, shown: list[bytes]) -> None:
    try:
        while data := os.read(primary, 65536):
            shown.append(data)
    except OSError:
        return  # Linux's way to say that the other end was closed


def visible(text: str) -> list[str]:
    """The lines that a terminal shows in the end, for the few control sequences that rich uses."""
    lines = [""]
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part == "\x1b[1A":
            lines.pop()
        elif not part.startswith("\x1b") and part != "\r":
            lines[-1] += part
    return [line.rstrip() for line in lines if line.strip()]
