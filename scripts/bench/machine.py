"""What a result was measured on, kept with it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from coldctl.jobs.bench.machine.host_facts import host_facts
from coldctl.jobs.bench.machine.versions import version_of
from scripts.bench import guest_memory

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coldctl", "blake3", "msgspec", "numpy", "safetensors", "typer", "rich")


def describe(folder: Path, *more_packages: str) -> dict[str, object]:
    """This machine, the filesystem that holds `folder`, the commit and the versions in use, and the date."""
    host = host_facts(os.fspath(folder))
    return {
        "cpu": host.cpu,
        "cores": host.cpus,
        "memory_bytes": host.memory_bytes,
        "kernel": host.kernel,
        "filesystem": host.filesystem,
        "free_page_reporting": guest_memory.state(),
        "commit": _commit(ROOT),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in dict.fromkeys((*PACKAGES, *more_packages))},
        "date": datetime.now(UTC).date().isoformat(),
    }


def _commit(repository: Path) -> str:
    """The short hash of what is checked out, with "-dirty" when tracked files differ that are no results; unknown
    outside a repository."""
    git = ("git", "-C", os.fspath(repository))
    changes = (*git, "status", "--porcelain", "--untracked-files=no", "--", ":(exclude)scripts/bench/results")
    try:
        commit = _printed(*git, "rev-parse", "--short", "HEAD")
        return f"{commit}-dirty" if _printed(*changes) else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
