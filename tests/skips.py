"""A pytest plugin: under CI=true a skipped test fails the run, unless its reason is one that a machine can have.

Locally a missing filesystem tool or a plain user skips a test with its reason and nothing more. In CI the same skip
would turn a broken set-up into a green run, so there only what no package can add is excused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

EXCUSES = ("no CUDA", "no GDS", "no AVX-512", "not root")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that the skipped test or module gave, without pytest's own prefix."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def is_excused(reason: str) -> bool:
    """Whether `reason` starts with one of EXCUSES, as a whole word: `no CUDA: …` does, `no CUDART` does not."""
    return any(reason == excuse or reason.startswith((f"{excuse} ", f"{excuse}:", f"{excuse},")) for excuse in EXCUSES)


class SkipPolice:
    """Collects the skips that have no excuse, fails the session for them and names them at its end."""

    def __init__(self) -> None:
        self.unexcused: list[tuple[str, str]] = []

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and not is_excused(reason_of(report)):
            self.unexcused.append((report.nodeid, reason_of(report)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        if self.unexcused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.unexcused:
            return
        terminalreporter.section("skips that CI does not accept", red=True)
        for nodeid, reason in self.unexcused:
            terminalreporter.write_line(f"{nodeid}: {reason}")
        terminalreporter.write_line(f"accepted reasons start with: {', '.join(EXCUSES)}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(SkipPolice(), "skip-police")
