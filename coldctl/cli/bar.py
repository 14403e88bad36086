"""The progress bar on a terminal. Imported only there, because rich takes a tenth of a second to import."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from coldctl.cli.log import Log
from coldctl.cli.output import may_colour
from coldctl.cli.progress import Snapshot

_STDERR = 2


class Bar:
    """One line that is redrawn, kept when its phase is over. The log prints its own lines above it."""

    interval_seconds = 0.1

    def __init__(self, log: Log) -> None:
        self._log = log
        self._console = Console(
            file=sys.stderr,
            force_terminal=True,
            no_color=not may_colour(_STDERR),
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._live: Progress | None = None
        self._task = TaskID(0)

    def draw(self, snapshot: Snapshot) -> None:
        live = self._live or self._begin(snapshot)
        live.update(self._task, completed=snapshot.done_bytes, sentence=snapshot.sentence())
        live.refresh()
        if snapshot.over:
            self._end(live)

    def _begin(self, snapshot: Snapshot) -> Progress:
        # rich would print sizes in GiB beside rates in GB/s of its own making: the sentence is ours, units and all.
        live = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.fields[sentence]}", markup=False),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = live.add_task("", total=snapshot.total_bytes, sentence="")
        live.start()
        self._live = live
        self._log.above = lambda text: self._console.print(Text(text))
        return live

    def _end(self, live: Progress) -> None:
        self._log.above = None
        live.stop()
        self._live = None
