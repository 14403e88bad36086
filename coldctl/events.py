"""The stream of progress and notes that runs beside every job.

A job calls these methods and knows nothing of terminals; the null sink here does nothing, the command line
passes one that draws (`coldctl.cli.progress`).
"""

from __future__ import annotations


class Events:
    """The null sink, and the interface of all others. Every method may be called from any thread."""

    def begin(self, label: str, total_bytes: int) -> None:
        """A phase of known size starts: `label` is a verb ("copying"), `total_bytes` what it will move."""

    def advance(self, nbytes: int) -> None:
        """`nbytes` more of the current phase are done."""

    def end(self) -> None:
        """The current phase is over, whole or not."""

    def note(self, message: str) -> None:
        """Something that the operator should know and that is no error."""

    def raise_if_stopped(self) -> None:
        """Raise StoppedError when the process was asked to stop. Jobs call it between chunks."""


NULL = Events()
