"""What a result was measured on, kept with it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scripts.bench import guest_memory

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coldctl", "blake3", "msgspec", "numpy", "safetensors", "typer", "rich")


def describe(folder: Path, *more_packages: str) -> dict[str, object]:
    """This machine, the filesystem that holds `folder`, the commit and the versions in use, and the date."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_field("/proc/meminfo", "MemTotal").removesuffix(" kB")) * 1024,
        "kernel": platform.release(),
        "filesystem": _filesystem(folder),
        "free_page_reporting": guest_memory.state(),
        "commit": _commit(ROOT),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in dict.fromkeys((*PACKAGES, *more_packages))},
        "date": datetime.now(UTC).date().isoformat(),
    }


def _version(package: str) -> str | None:
    """None for what runs from its sources, or is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _filesystem(folder: Path) -> str:
    command = ("findmnt", "--noheadings", "--output", "FSTYPE", "--target", os.fspath(folder))
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _commit(repository: Path) -> str:
    """The short hash of what is checked out, with "-dirty" when tracked files differ; unknown outside a repository."""
    command = ("git", "-C", os.fspath(repository), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
