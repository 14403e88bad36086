"""Files that a command writes beside its result, such as a page to look at.

Each is claimed before the work begins, so that a long run is not lost to a wrong path, and appears whole at its end.
What stands under its name is replaced only if it is empty or another of its kind: a slip of the command line must not
cost a checkpoint.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Self

from coldctl.errors import UsageError, from_os_error

_LOOKED_AT_BYTES = 4096


class FileBeside:
    """The file at `path`, of a kind that has `mark` in its first 4 KiB. Nothing is left of it when it was not written.

    Raises UsageError when something else stands there, and what `from_os_error` makes of a folder that takes no file.
    """

    def __init__(self, path: str, mark: bytes) -> None:
        self.path = path
        self._folder, self._name = os.path.dirname(path) or ".", os.path.basename(path)
        _refuse_another_kind(path, mark)
        try:
            descriptor, self._temporary = tempfile.mkstemp(prefix=".coldctl-", dir=self._folder)
        except OSError as error:
            raise from_os_error(error, "write", path) from error
        self._file = open(descriptor, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115

    def require_other_than(self, other: FileBeside) -> None:
        """Raise UsageError when one would replace the other: the same name in one folder, however it is spelled."""
        if self._name == other._name and os.path.samefile(self._folder, other._folder):
            raise UsageError(f"{self.path} and {other.path} are one file", hint="name a file for each")

    def write(self, text: str) -> None:
        """Raises what `from_os_error` makes of a failed write."""
        umask = os.umask(0)
        os.umask(umask)
        try:
            self._file.write(text)
            os.fchmod(self._file.fileno(), 0o666 & ~umask)
            self._file.close()  # some filesystems say only now that they are full
            os.replace(self._temporary, self.path)
        except OSError as error:
            raise from_os_error(error, "write", self.path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # `write` has told it
            self._file.close()
        with suppress(OSError):  # it has its name by now
            os.unlink(self._temporary)


def _refuse_another_kind(path: str, mark: bytes) -> None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is no file", hint="name a file that may be written")
        if status.st_size == 0:
            return
        with open(path, "rb") as file:
            beginning = file.read(_LOOKED_AT_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise from_os_error(error, "look at", path) from error
    if mark not in beginning:
        raise UsageError(f"{path} is there, and not of the kind that would replace it", hint="name another file")
