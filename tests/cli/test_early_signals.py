"""Signals before the handlers of a job are there, and after its result is out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.process import clean_environment

NUMBERS = [signal.SIGINT, signal.SIGTERM]

# coldctl, which meets the signal in the middle of the import of its command line.
EARLY = """
import os, sys
from coldctl import probe
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "coldctl.cli.signals":
            os.kill(os.getpid(), {number})
        return None
sys.meta_path.insert(0, Finder())
sys.exit(probe.main())
"""

TWICE = """
import os, signal, sys
from coldctl import probe
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "coldctl.cli.signals":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            os.write(1, b"still here")
        return None
sys.meta_path.insert(0, Finder())
sys.exit(probe.main())
"""

# coldctl, and an end of the interpreter that waits for us where its handlers are gone already.
LATE = """
import os, sys
from coldctl import probe
code = probe.main()
class Last:
    def __del__(self, read=os.read, write=os.write):
        write(2, b"the end\\n")
        read(0, 1)
sys.modules["last"] = Last()
sys.exit(code)
"""


@contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, env=clean_environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_during_the_imports_stops_it_with_a_document(model: Path, number: signal.Signals) -> None:
    with running(EARLY.format(number=int(number)), "status", str(model), "--json") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert json.loads(out)["error"]["message"] == f"stopped by {number.name}"
    assert "Traceback" not in err


def test_a_second_signal_during_the_imports_ends_it_at_once(model: Path) -> None:
    with running(TWICE, "status", str(model), "--json") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode in (130, 143)
    assert (out, err) == ("", "")


@pytest.mark.parametrize("arguments", [["--version"], ["status", "{model}", "--json"]])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_after_the_result_changes_nothing(model: Path, number: signal.Signals, arguments: list[str]) -> None:
    with running(LATE, *(word.format(model=model) for word in arguments)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert process.stderr.readline() == "the end\n"
        process.send_signal(number)
        process.stdin.write("x")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
    assert first == "coldctl 0.1.0\n" or json.loads(first)["ok"] is True


@pytest.mark.parametrize("number", NUMBERS)
def test_the_message_names_the_signal(model: Path, number: signal.Signals) -> None:
    with running(EARLY.format(number=int(number)), "status", str(model)) as process:
        _, err = process.communicate(timeout=60)
    assert f"coldctl: error: stopped by {number.name}\n" in err
