"""What a benchmark needs of the machine, and the command that brings what is missing."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from coldctl.units import format_size

SHARED_MEMORY = Path("/dev/shm")


class Need(Protocol):
    """Prints as what is needed. `lacking` says what is missing and what to do, and is None where all is there."""

    def lacking(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Root:
    def __str__(self) -> str:
        return "root, to mount a loop device"

    def lacking(self) -> str | None:
        return None if os.geteuid() == 0 else "root mounts its disk: run it with sudo"


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, from the `package` of Debian and Ubuntu."""

    name: str
    package: str

    def __str__(self) -> str:
        return self.name

    def lacking(self) -> str | None:
        return None if shutil.which(self.name) else f"{self.name} is not on PATH: apt-get install {self.package}"


@dataclass(frozen=True, slots=True)
class Modules:
    """Python modules, which `command` installs all at once; `of` says which they are."""

    of: str
    names: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        return self.of

    def lacking(self) -> str | None:
        missing = [name for name in self.names if find_spec(name) is None]
        return f"not installed: {', '.join(missing)}: {self.command}" if missing else None


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes on the filesystem of `folder`; None is the folder for temporary files."""

    nbytes: int
    folder: Path | None = None

    def __str__(self) -> str:
        return f"{format_size(self.nbytes)} in {self._where()}"

    def lacking(self) -> str | None:
        free_bytes = shutil.disk_usage(self._where()).free
        if free_bytes >= self.nbytes:
            return None
        remedy = "free some" if self.folder else "free some, or set TMPDIR to a folder with more"
        return f"{self._where()} has {format_size(free_bytes)} free of {format_size(self.nbytes)}: {remedy}"

    def _where(self) -> Path:
        return self.folder or Path(tempfile.gettempdir())
