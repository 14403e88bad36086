"""Standard error: notes, progress and errors, as text for people or, with COLDCTL_LOG_FORMAT=json, as JSON Lines."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from coldctl.cli.failures import Failure
from coldctl.cli.output import may_colour
from coldctl.report.escape import escape
from coldctl.report.json import line
from coldctl.report.text.style import Style

_STDERR = 2


class Log:
    """One line at a time, from any thread. `quiet` keeps everything but errors back. A stderr that is closed, full or
    gone is no error: there is nowhere left to say so.

    While a bar is drawn, `above` takes the text lines, and puts them above it.
    """

    def __init__(self, command: str | None) -> None:
        self.json = False
        self.quiet = False
        self.above: Callable[[str], None] | None = None
        self._command = command
        self._lock = threading.Lock()
        self._style = Style(colour=may_colour(_STDERR))

    def note(self, message: str) -> None:
        """Something that the operator should know and that is no error."""
        if not self.quiet:
            self._put("info", "note", escape(message), lambda text: f"coldctl: note: {text}")

    def progress(self, message: str, fields: dict[str, Any]) -> None:
        """One progress line; `fields` are its numbers, for JSON."""
        if not self.quiet:
            self._put("info", "progress", escape(message), str, fields)

    def error(self, failure: Failure) -> None:
        """What ends the run; with a traceback where there is one."""
        message = escape(failure.message)
        hint = None if failure.hint is None else escape(failure.hint)
        fields: dict[str, Any] = {"code": failure.code, "exit_code": failure.exit_code, "hint": hint}
        if failure.traceback is not None:
            fields["traceback"] = failure.traceback
        self._put("error", "error", message, lambda text: self._error_text(text, hint, failure.traceback), fields)

    def _error_text(self, message: str, hint: str | None, traceback: str | None) -> str:
        trace = "".join(escape(row) + "\n" for row in traceback.splitlines()) if traceback is not None else ""
        advice = f"\ncoldctl: hint: {hint}" if hint is not None else ""
        return f"{trace}coldctl: {self._style.bad('error:')} {message}{advice}"

    def _put(
        self,
        level: str,
        event: str,
        message: str,
        as_text: Callable[[str], str],
        fields: dict[str, Any] | None = None,
    ) -> None:
        if self.json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            record = {"ts": now, "level": level, "event": event, "command": self._command, "message": message}
            self._write(line(record | (fields or {})))
        elif (above := self.above) is not None:
            above(as_text(message))
        else:
            self._write(as_text(message) + "\n")

    def _write(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(_STDERR, data) :]
