"""What was located. Plain classes, because dataclasses take longer to import than a probe may take to run."""

from __future__ import annotations

from coldctl.errors import ColdctlError, from_os_error
from coldctl.loader.regular import refusal, stat_regular


class Fault:
    """A broken rule of `coldctl.loader.format.rules`, by its id."""

    __slots__ = ("file", "message", "rule", "tensor")

    def __init__(self, rule: str, message: str, file: str | None = None, tensor: str | None = None) -> None:
        self.rule = rule
        self.message = message
        self.file = file
        self.tensor = tensor


class Member:
    """A regular file of the checkpoint: its `name` relative to the root, as in the index, and the `path` to open."""

    __slots__ = ("name", "path", "size_bytes")

    def __init__(self, name: str, path: str, size_bytes: int) -> None:
        self.name = name
        self.path = path
        self.size_bytes = size_bytes


class Located:
    """`members` in natural order; `ignored` are the files beside them that look like weights and are never read.

    `weight_map` is None without an index; `single_file` says that the path named one file, not a folder or an index.
    `unreadable` are files that are there but may not be looked at.
    """

    __slots__ = (
        "faults",
        "ignored",
        "index_metadata",
        "index_name",
        "members",
        "root",
        "single_file",
        "unreadable",
        "weight_map",
    )

    def __init__(self, root: str) -> None:
        self.root = root
        self.single_file = False
        self.index_name: str | None = None
        self.index_metadata: dict[str, object] | None = None
        self.weight_map: dict[str, str] | None = None
        self.members: list[Member] = []
        self.ignored: list[str] = []
        self.faults: list[Fault] = []
        self.unreadable: list[ColdctlError] = []

    def add_members(self, files: list[tuple[str, str]]) -> list[str]:
        """Make members of the (name, path) that are regular files, and faults of the rest; the names not found."""
        missing = []
        for name, path in files:
            try:
                size_bytes = stat_regular(path).st_size
            except OSError as error:
                refused = refusal(error, path, name)
                if refused is None:
                    self.unreadable.append(from_os_error(error, "find", path))
                elif refused[0] == "file.missing":
                    missing.append(name)
                else:
                    self.faults.append(Fault(refused[0], refused[1], name))
            else:
                self.members.append(Member(name, path, size_bytes))
        return missing
