"""What a command has in its hands: events for its job, and one way each for a result and for a failure to get out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from coldctl.cli.failures import Failure, describe
from coldctl.cli.invocation import Invocation
from coldctl.cli.log import Log
from coldctl.cli.output import stdout_style, write_stdout
from coldctl.cli.progress import Progress, display_for
from coldctl.cli.settings import Settings
from coldctl.cli.signals import Stop
from coldctl.errors import ColdctlError
from coldctl.events import Events
from coldctl.report.json import error_document, result_document
from coldctl.report.text.style import Style

_STDERR = 2

Result = TypeVar("Result")


class Console:
    """The streams of one run of one command."""

    def __init__(self, invocation: Invocation, stop: Stop) -> None:
        self._command = invocation.command
        self._json = invocation.json
        self._settings = Settings()
        self._log = Log(invocation.command)
        self._stop = stop
        self._remarks: list[str] = []
        self._document = threading.Lock()
        stop.announce = lambda name: self._log.note(f"stopping on {name}; a second signal ends coldctl at once")
        stop.abandon = self.fail

    def when_begun(self, remark: str) -> None:
        """Note `remark` when the job begins: only then is it known whether the run is a quiet one."""
        self._remarks.append(remark)

    def configure(self, settings: Settings) -> None:
        """Take the global settings into use."""
        self._settings = settings
        self._log.json = settings.log_json

    @contextmanager
    def events(self, *, json: bool, quiet: bool) -> Iterator[Events]:
        """The events for the job that runs in the body; nothing begins after a signal. `json`, `quiet`: as parsed."""
        self._json = json
        self._log.quiet = quiet
        display = display_for(
            self._log,
            self._command or "coldctl",
            self._settings,
            quiet=quiet,
            on_terminal=os.isatty(_STDERR) and os.environ.get("TERM", "dumb") != "dumb",
        )
        for remark in self._remarks:
            self._log.note(remark)
        events = Progress(self._log, self._stop, display)
        events.raise_if_stopped()
        try:
            yield events
        finally:
            events.end()

    def show(self, result: Result, render: Callable[[Result, Style], str], exit_code: int) -> int:
        """Print `result` on stdout, as text or as the one JSON document, and return `exit_code`."""
        if not self._json:
            write_stdout(render(result, stdout_style()))
        elif self._claim_document():
            write_stdout(result_document(self._command or "coldctl", result, ok=exit_code == 0))
        return exit_code

    def fail(self, error: BaseException) -> int:
        """Tell `error` on stderr, and on stdout as the one JSON document where that is asked for; its exit code."""
        failure = describe(error, command=self._command, debug=self._settings.debug, environ=os.environ)
        self._log.error(failure)
        if self._json and self._claim_document():
            self._write_document(failure)
        return failure.exit_code

    def _write_document(self, failure: Failure) -> None:
        document = error_document(
            self._command,
            code=failure.code,
            exit_code=failure.exit_code,
            message=failure.message,
            hint=failure.hint,
        )
        try:
            write_stdout(document)
        except ColdctlError:
            # stderr has told the failure already, and its exit code says more than that of a full stdout.
            return

    def _claim_document(self) -> bool:
        """True for the first caller only: stdout carries one document, whichever thread comes first."""
        return self._document.acquire(blocking=False)
