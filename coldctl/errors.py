"""The one exception tree: what went wrong, where, what to do, and the exit code that says so.

Exit codes (the same in every command): 0 done; 1 judged, and the answer is no; 2 usage; 3 done in part or
refused to begin; 4 the input is not what it should be; 5 the environment lacks something; 6 no space;
70 a bug of coldctl; 130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import copyreg
import errno
import os
import signal
from typing import Any


class ColdctlError(Exception):
    """Base of all that coldctl raises on purpose. A bare one is a bug of coldctl.

    `message` says what happened, where and what was expected; `hint` what to do about it. Both may contain
    text from hostile files: whoever prints them escapes them (`coldctl.report.escape`). `file`, its `offset_bytes`,
    `tensor` and the `stage` of a load (pin, allocate, read, h2d, verify) are set where they are known.
    """

    exit_code = 70
    code = "bug"
    hint: str | None = None
    tensor: str | None = None
    stage: str | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, file: str | None = None, offset_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.offset_bytes = offset_bytes
        if hint is not None:
            self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied it is the same error with all that it says, whatever its class is made with. Python would
        call the class with the message alone, which some refuse: then a pool of processes waits for ever."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def locate(self, *, stage: str, file: str | None = None, tensor: str | None = None) -> None:
        """Say where it happened, once, in the message too."""
        if self.stage is not None:
            return
        self.stage, self.file, self.tensor = stage, self.file or file, self.tensor or tensor
        where = [f"stage {stage}"]
        where += [f"tensor {self.tensor}"] if self.tensor and f"tensor {self.tensor}" not in self.message else []
        where += [f"file {self.file}"] if self.file and self.file not in self.message else []
        self.message += f" ({', '.join(where)})"
        self.args = (self.message,)


class UsageError(ColdctlError):
    """The command line or the options of a job make no sense."""

    exit_code = 2
    code = "usage"


class RefusedError(ColdctlError):
    """coldctl declined to begin, and nothing was changed."""

    exit_code = 3
    code = "refused"


class UnreadableError(ColdctlError):
    """Bytes that should be there could not be read (an I/O error of the storage below)."""

    exit_code = 3
    code = "unreadable"
    hint = "the storage reported the error: look at the kernel log, and restore the file from another copy"


class InputError(ColdctlError):
    """The input is not what it should be: missing, malformed, or changed while it was read."""

    exit_code = 4
    code = "input"


class FaultError(InputError):
    """A checkpoint breaks a rule of its format; `rule` is the rule's id in `coldctl.loader.format.rules`."""

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        file: str | None = None,
        tensor: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, file=file)
        self.code = rule
        self.rule = rule
        self.tensor = tensor


class ChangedError(InputError):
    """A file shrank, grew or was replaced while coldctl was reading it."""

    code = "changed"
    hint = "wait until nothing writes to the checkpoint, then open it again"


class EnvironmentLacksError(ColdctlError):
    """The machine cannot do it: permission, read-only, an unsupported filesystem, a missing package."""

    exit_code = 5
    code = "environment"


class OutOfMemoryError(EnvironmentLacksError):
    """Host or device memory for the tensors could not be had."""

    code = "out-of-memory"


class PinError(EnvironmentLacksError):
    """Host memory could not be page-locked for the device."""

    code = "pin"
    hint = "raise the limit of locked memory (ulimit -l, or the container's memlock), or use mode per-tensor"


class DeviceError(EnvironmentLacksError):
    """The device failed, or did not finish a copy before its deadline."""

    code = "device"
    hint = "look at the kernel log and at nvidia-smi: the device may need a reset"


class CorruptedError(ColdctlError):
    """Bytes in memory differ from those in the file, which is sound: they changed on their way."""

    exit_code = 3
    code = "corrupted"
    hint = "load again; if it happens again, test the machine's memory and its bus"


class NoSpaceError(ColdctlError):
    """The target filesystem or the caller's quota is full."""

    exit_code = 6
    code = "no-space"
    hint = "free space on the target filesystem, or choose another target"


class CancelledError(ColdctlError):
    """The caller cancelled the load."""

    exit_code = 3
    code = "cancelled"


class NotLoadedError(ColdctlError, KeyError):
    """The tensor is part of the load, but its bytes have not arrived."""

    exit_code = 3
    code = "not-loaded"
    hint = "wait() for the whole load, or ask `loaded` which tensors are there"

    __str__ = ColdctlError.__str__


class StoppedError(ColdctlError):
    """SIGINT or SIGTERM asked coldctl to stop, and it did, between two chunks."""

    code = "stopped"

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def from_os_error(error: OSError, doing: str, path: str | os.PathLike[str]) -> ColdctlError:
    """The ColdctlError for `error`, which came up while `doing` ("read", "write", …) something to `path`."""
    message = f"cannot {doing} {os.fspath(path)}: {error.strerror or error}"
    if error.errno in _MISSING:
        return InputError(message, hint="check the path")
    if error.errno in _FORBIDDEN:
        return EnvironmentLacksError(message, hint="run as a user who may, or change the permissions")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return EnvironmentLacksError(message, hint="raise the limit of open files (ulimit -n)")
    if error.errno == errno.EAGAIN:
        return EnvironmentLacksError(message, hint="raise the limit of processes (ulimit -u), or free memory")
    if error.errno == errno.EROFS:
        return EnvironmentLacksError(message, hint="choose a target on a filesystem that is mounted writable")
    if error.errno in _FULL:
        return NoSpaceError(message)
    if error.errno == errno.EIO:
        return UnreadableError(message)
    return EnvironmentLacksError(message)
