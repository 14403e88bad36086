"""Progress: plain lines off a terminal, a bar on one, nothing when quiet; notes that tear neither."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coldctl.cli.log import Log
from coldctl.cli.progress import Lines, Progress, Snapshot, display_for
from coldctl.cli.settings import Settings
from coldctl.cli.signals import Stop
from tests.cli.process import clean_environment
from tests.cli.terminal import on_a_terminal, visible

GIB = 1 << 30


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


class Recorder:
    """A display that keeps what it is shown."""

    interval_seconds = 0.01

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []

    def draw(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)


def test_the_counter_loses_nothing_from_many_threads() -> None:
    recorder = Recorder()
    progress = Progress(Log("prewarm"), Stop(), recorder)
    progress.begin("reading", 8 * 10_000 * 3)

    def advance() -> None:
        for _ in range(10_000):
            progress.advance(3)

    threads = [threading.Thread(target=advance) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.end()
    assert recorder.shown[-1].done_bytes == 240_000
    assert recorder.shown[-1].over


def test_lines_come_now_and_then_and_a_last_one(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log("prewarm")
    recorder = Recorder()
    lines = Lines(log, "prewarm", interval_seconds=0.01)

    class Both(Recorder):
        def draw(self, snapshot: Snapshot) -> None:
            lines.draw(snapshot)
            recorder.draw(snapshot)

    progress = Progress(log, Stop(), Both())
    progress.begin("reading", 4 * GIB)
    progress.advance(GIB)
    wait_until(lambda: len(recorder.shown) >= 2)
    progress.advance(3 * GIB)
    progress.end()
    out, err = capfd.readouterr()
    assert out == ""
    first, *_, last = err.splitlines()
    assert re.fullmatch(r"prewarm: reading 1\.0 GiB of 4\.0 GiB \(25 %\), [\d.]+ [kMG]B/s, .* left", first)
    assert re.fullmatch(r"prewarm: reading 4\.0 GiB of 4\.0 GiB \(100 %\), [\d.]+ [kMG]B/s, [\d.]+ s", last)
    assert "\x1b" not in err


def test_a_phase_that_ends_early_does_not_say_100_per_cent(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Log("prewarm"), Stop(), Lines(Log("prewarm"), "prewarm", 60))
    progress.begin("reading", 1_000_000)
    progress.advance(999_999)
    progress.end()
    assert "(99.9 %)" in capfd.readouterr().err


def test_the_next_phase_ends_the_one_before(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Log("repack"), Stop(), Lines(Log("repack"), "repack", 60))
    progress.begin("copying", 10)
    progress.advance(10)
    progress.begin("syncing", 0)
    progress.end()
    progress.end()
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("repack: copying 10 B of 10 B (100 %)")
    assert second.startswith("repack: syncing 0 B of 0 B (100 %)")


def test_a_stall_is_told() -> None:
    snapshot = Snapshot("reading", 5, 10, seconds=7.0, bytes_per_second=0.0, over=False)
    assert snapshot.sentence() == "reading 5 B of 10 B (50 %), 0 kB/s, stalled"


def test_what_is_left_is_told_in_whole_seconds() -> None:
    snapshot = Snapshot("reading", 3 * GIB, 15 * GIB, seconds=2.0, bytes_per_second=2.0 * GIB, over=False)
    assert snapshot.sentence() == "reading 3.0 GiB of 15.0 GiB (20 %), 2.15 GB/s, 6 s left"


def test_the_rate_while_it_runs_is_the_rate_of_late() -> None:
    # 8 GB in the first second, nothing for ten: the window of three seconds has forgotten them.
    recorder = Recorder()
    progress = Progress(Log("prewarm"), Stop(), recorder)
    progress.begin("reading", 16)
    progress.advance(8)
    wait_until(lambda: any(shown.bytes_per_second > 0 for shown in recorder.shown))
    wait_until(lambda: recorder.shown[-1].bytes_per_second == 0)
    progress.end()
    assert recorder.shown[-1].bytes_per_second > 0


@pytest.mark.parametrize(
    ("quiet", "on_terminal", "log_json", "expected"),
    [
        (True, True, False, "NoneType"),
        (True, False, False, "NoneType"),
        (False, False, False, "Lines"),
        (False, True, True, "Lines"),
        (False, True, False, "Bar"),
    ],
)
def test_the_display_suits_the_place(quiet: bool, on_terminal: bool, log_json: bool, expected: str) -> None:
    settings = Settings(log_json=log_json)
    display = display_for(Log("prewarm"), "prewarm", settings, quiet=quiet, on_terminal=on_terminal)
    assert type(display).__name__ == expected


def test_notes_are_for_people_and_not_when_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log("prewarm")
    Progress(log, Stop(), None).note("the name is \x1b[2J\nand more")
    assert capfd.readouterr().err == "coldctl: note: the name is \\x1b[2J\\nand more\n"
    log.quiet = True
    Progress(log, Stop(), None).note("no one hears it")
    assert capfd.readouterr().err == ""


def test_progress_and_notes_as_json_lines(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log("prewarm")
    log.json = True
    progress = Progress(log, Stop(), Lines(log, "prewarm", 60))
    progress.begin("reading", 10)
    progress.note("half way\udcff")
    progress.advance(10)
    progress.end()
    note, last = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (note["event"], note["level"], note["message"]) == ("note", "info", r"half way\xff")
    assert (last["event"], last["command"], last["done_bytes"], last["over"]) == ("progress", "prewarm", 10, True)


# The program of a job with one phase and one note in it, run with stderr on a terminal.
BAR = """
import sys, time
from coldctl.cli import signals
stop = signals.install()
from coldctl.cli.console import Console
from coldctl.cli.invocation import Invocation
from coldctl.cli.settings import read_settings
import os
console = Console(Invocation("prewarm", json=False), stop)
console.configure(read_settings(os.environ))
with console.events(json=False, quiet="quiet" in sys.argv) as events:
    events.begin("reading", 1 << 30)
    for step in range(8):
        events.advance(1 << 27)
        if step == 4:
            time.sleep(0.3)
            events.note("half of it is there")
    events.end()
print("rich" in sys.modules)
"""


def test_on_a_terminal_a_bar_is_redrawn_and_its_last_state_kept() -> None:
    stderr, stdout = on_a_terminal("-c", BAR, stream="stderr")
    assert stdout == "True\n"
    assert "\x1b[2K" in stderr
    note, bar = visible(stderr)
    assert note == "coldctl: note: half of it is there"
    assert re.search(r"━ reading 1\.0 GiB of 1\.0 GiB \(100 %\), [\d.]+ [MG]B/s, [\d.]+ s$", bar)


def test_the_bar_has_no_colour_with_no_color() -> None:
    coloured, _ = on_a_terminal("-c", BAR, stream="stderr")
    plain, _ = on_a_terminal("-c", BAR, stream="stderr", environment={"NO_COLOR": "1"})
    colour = re.compile(r"\x1b\[[0-9;]*(3[0-9]|38;[0-9;]*|9[0-7])m")
    assert colour.search(coloured)
    assert not colour.search(plain)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"COLDCTL_LOG_FORMAT": "json"}])
def test_a_dumb_terminal_and_a_json_log_get_lines(environment: dict[str, str]) -> None:
    stderr, stdout = on_a_terminal("-c", BAR, stream="stderr", environment=environment)
    assert stdout == "False\n"
    assert "\x1b" not in stderr
    assert "(100 %)" in stderr


def test_quiet_on_a_terminal_shows_nothing() -> None:
    assert on_a_terminal("-c", BAR, "quiet", stream="stderr") == ("", "False\n")


def test_off_a_terminal_there_are_lines_and_no_rich(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BAR]
    variables = {"COLDCTL_PROGRESS_SECONDS": "0.05", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "GITHUB_ACTIONS": "1"}
    done = subprocess.run(command, env=clean_environment(variables), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("prewarm: reading 640.0 MiB of 1.0 GiB (62.5 %)")
    assert last.startswith("prewarm: reading 1.0 GiB of 1.0 GiB (100 %)")
    assert "coldctl: note: half of it is there" in done.stderr.splitlines()
    assert "\x1b" not in done.stderr
