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

from coldctl.errors import UsageError, from_os_error

_LOOKED_AT_BYTES = 4096
_STANDARD_STREAMS = (0, 1, 2)


class FileBeside:
    """The file at `path`, or where that link leads, of a kind that has `mark` in its first 4 KiB.

    Nothing is left of it when it was not written. Raises UsageError when something else stands there, and what
    `from_os_error` makes of a folder that takes no file.
    """

    def __init__(self, path: str, mark: bytes) -> None:
        self.path = path
        _refuse_another_kind(path, mark)
        self._target = os.path.realpath(path)
        self._folder = os.path.dirname(self._target)
        try:
            descriptor, temporary = self._temporary()
            os.close(descriptor)
            os.unlink(temporary)
        except OSError as error:
            raise from_os_error(error, "write", path) from error

    def require_other_than(self, other: FileBeside) -> None:
        """Raise UsageError when one would replace the other, however it is spelled."""
        if os.path.basename(self._target) == os.path.basename(other._target) and os.path.samefile(
            self._folder, other._folder
        ):
            raise UsageError(f"{self.path} and {other.path} are one file", hint="name a file for each")

    def write(self, text: str) -> None:
        """Raises what `from_os_error` makes of a failed write."""
        umask = os.umask(0)
        os.umask(umask)
        try:
            descriptor, temporary = self._temporary()
            try:
                with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
                    os.fchmod(file.fileno(), 0o666 & ~umask)
                os.replace(temporary, self._target)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise from_os_error(error, "write", self.path) from error

    def _temporary(self) -> tuple[int, str]:
        return tempfile.mkstemp(prefix=".coldctl-", dir=self._folder)


def _refuse_another_kind(path: str, mark: bytes) -> None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or _is_standard_stream(status):
            raise UsageError(f"{path} is no file of its own", hint="name a file that may be written")
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


def _is_standard_stream(status: os.stat_result) -> bool:
    """Whether it is where stdin, stdout or stderr lead: the result goes there, and would be replaced."""
    for descriptor in _STANDARD_STREAMS:
        with suppress(OSError):  # a stream that is closed
            if os.path.samestat(os.fstat(descriptor), status):
                return True
    return False
