"""Child processes and what they cost: wall seconds, CPU seconds, peak anonymous memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldctl.jobs.bench.processes.host_memory import PeakSampler

COLDCTL = os.fspath(Path(sys.executable).with_name("coldctl"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. CPU counts the child and the children it waited for; `peak_anon_bytes` only where it was sampled."""

    seconds: float
    cpu_seconds: float
    peak_anon_bytes: int | None = None


def run(*command: str) -> Sample:
    """Run `command` with its output thrown away. Raises CalledProcessError, with its stderr shown, when it fails."""
    sample, _ = _run(command)
    return sample


def run_json(*command: str) -> tuple[Sample, Any]:
    """As `run`, with the JSON document that it printed."""
    sample, output = _run(command)
    return sample, json.loads(output)


def run_watching_memory(*command: str) -> Sample:
    """As `run`, with RssAnon read every 2 ms; a shorter peak may be missed."""
    sample, _ = _run(command, _peak_anon_bytes)
    return sample


def run_json_watching_memory(*command: str) -> tuple[Sample, Any]:
    """As `run_watching_memory`, with the JSON document that it printed."""
    sample, output = _run(command, _peak_anon_bytes)
    return sample, json.loads(output)


Watch = Callable[[subprocess.Popen[bytes]], int]


def _run(command: tuple[str, ...], watch: Watch | None = None) -> tuple[Sample, bytes]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        watched = watch(child) if watch else None
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        if child.returncode:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace"))
            raise subprocess.CalledProcessError(child.returncode, command)
        return Sample(seconds, usage.ru_utime + usage.ru_stime, watched), output.read()


def _peak_anon_bytes(child: subprocess.Popen[bytes]) -> int:
    """The most RssAnon seen until the child ends. It is left a zombie, so that its usage can still be asked for."""
    sampler = PeakSampler(child.pid)
    sampler.start()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    sampler.stop()
    return sampler.peak_anon_bytes
