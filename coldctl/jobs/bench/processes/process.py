"""A child process that gets one document on its stdin and leaves one on its stdout, and that never outlives the job.

The child leads a process group of its own, so that what it started can be ended with it, and a Ctrl-C at the terminal
reaches the job alone, which then ends the group. Where the job is killed outright, the kernel ends the child
(`coldctl.loader.syscalls.end_with_parent`, which every child calls first).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import BinaryIO

from coldctl.errors import EnvironmentLacksError, from_os_error
from coldctl.events import Events
from coldctl.units import MIB, format_size

_LOOK_SECONDS = 0.02
_LAST_LINE_BYTES = 4096
_LONGEST_LINE = 400
_END_SECONDS = 5.0
_MOST_WRITTEN_BYTES = 64 * MIB
"""What a child may write is in memory that counts for nobody, so that the kernel would kill who reads it."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a child may take, and a half-sentence that says where that comes from."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """`died` is null for a child that ended by itself with exit code 0, and else says how it ended and what it said
    last; `killed` when a signal was the end. `document` is all that it wrote, and nothing of one that was killed."""

    document: bytes
    died: str | None
    killed: bool


def run_child(
    command: Sequence[str],
    document: bytes,
    deadline: Deadline,
    events: Events,
    *,
    environment: Mapping[str, str] | None = None,
    watching: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> Ended:
    """Run `command` to its end. `watching` is called with its pid, and what it returns is entered as soon as the child
    runs, and left when it has ended (then its pid is still its own) or is about to be killed.

    Raises StoppedError, within 0.1 s of being asked, and EnvironmentLacksError when no process can be had. In no case
    is the child, or any process of its group, alive afterwards.
    """
    with _in_memory("task") as task, _in_memory("outcome") as outcome, _in_memory("messages") as messages:
        task.write(document)
        task.seek(0)
        child = _start(command, task, outcome, messages, environment)
        try:
            with watching(child.pid):
                why_killed = _wait(child, deadline, [outcome, messages], events)
        finally:
            _end_group(child)
        killed = bool(why_killed) or child.returncode < 0
        return Ended(b"" if killed else _all_of(outcome), _how_it_died(child, messages, why_killed), killed)


def _in_memory(name: str) -> BinaryIO:
    """A file in memory: unlike a pipe it never blocks who writes, and unlike a temporary file it needs no folder."""
    return open(os.memfd_create(f"coldctl-{name}"), "w+b", buffering=0)


def _start(
    command: Sequence[str], task: BinaryIO, outcome: BinaryIO, messages: BinaryIO, environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=task, stdout=outcome, stderr=messages, env=environment, start_new_session=True
        )
    except OSError as error:
        why = from_os_error(error, "start", "a process for a load")
        raise EnvironmentLacksError(why.message, hint=why.hint) from error


def _wait(
    child: subprocess.Popen[bytes], deadline: Deadline, written: Sequence[BinaryIO], events: Events
) -> str | None:
    """Until the child ends, or is to be killed, and then why. It stays a zombie, so that its group keeps its name."""
    until_seconds = time.monotonic() + deadline.seconds
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        events.raise_if_stopped()
        if time.monotonic() > until_seconds:
            return f"did not end within {deadline.reason}"
        if any(os.fstat(file.fileno()).st_size > _MOST_WRITTEN_BYTES for file in written):
            return f"wrote more than {format_size(_MOST_WRITTEN_BYTES)} to its stdout or stderr"
        time.sleep(_LOOK_SECONDS)
    return None


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child, if it still runs, and all that it started. One that hangs in the kernel is left to it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_SECONDS)


def _how_it_died(child: subprocess.Popen[bytes], messages: BinaryIO, why_killed: str | None) -> str | None:
    if child.returncode == 0 and not why_killed:
        return None
    return ": ".join(filter(None, [_ending(child, why_killed), _last_line(messages)]))


def _ending(child: subprocess.Popen[bytes], why_killed: str | None) -> str:
    if why_killed:
        return f"{why_killed}, and was killed"
    if child.returncode < 0:
        return f"was killed by {_name_of(-child.returncode)}"
    return f"ended with exit code {child.returncode}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _all_of(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _last_line(messages: BinaryIO) -> str:
    size_bytes = messages.seek(0, os.SEEK_END)
    messages.seek(max(0, size_bytes - _LAST_LINE_BYTES))
    lines = messages.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_LONGEST_LINE] if lines else ""
