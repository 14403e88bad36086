"""The real program in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what changes coldctl's output, and with `extra`."""
    changing = ("COLDCTL_", "NO_COLOR", "GITHUB_ACTIONS", "FORCE_COLOR", "TTY_", "COLUMNS", "PYTHONIOENCODING")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    return environment | {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | (extra or {})


def run_python(
    *arguments: str | bytes, environment: dict[str, str] | None = None, prefix: Sequence[str] = (), **options: Any
) -> Any:
    """`PREFIX… python ARGUMENTS…` to its end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60} | options
    return subprocess.run([*prefix, sys.executable, *arguments], env=clean_environment(environment), **options)
