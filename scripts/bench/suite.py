"""Runs benchmarks one after the other, each in a process of its own, and keeps the result of those that ended whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.report import Target

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How one benchmark ended: with its verdicts, or with the reason why it has none."""

    name: str
    targets: tuple[Target, ...] = ()
    failure: str | None = None

    @property
    def missed(self) -> bool:
        return not all(target.met for target in self.targets)

    def __str__(self) -> str:
        if self.failure:
            return f"{self.name}: FAILED: {self.failure}; nothing new was kept"
        met = sum(target.met for target in self.targets)
        return f"{self.name}: {'MISSED' if self.missed else 'met'}: {met} of {len(self.targets)} targets met"


@dataclass(frozen=True, slots=True)
class Suite:
    """The modules of `package`, which runs in `folder`, and where the results stay: NAME.json in `results`."""

    package: str = "scripts.bench"
    folder: Path = ROOT
    results: Path = ROOT / "scripts" / "bench" / "results"

    def run(self, names: Iterable[str], rounds: int | None = None) -> list[Ended]:
        """Run each, whatever becomes of the others; without `rounds` as many as the benchmark takes by itself."""
        ended = []
        for name in names:
            print(f"\n=== {name}", flush=True)
            ended.append(self._run(name, rounds))
        return ended

    def _run(self, name: str, rounds: int | None) -> Ended:
        with tempfile.TemporaryDirectory(prefix=".running-", dir=self.results) as folder:
            result = Path(folder, "result.json")
            status = self._run_module(name, "--json", os.fspath(result), *(["--rounds", str(rounds)] if rounds else []))
            if status not in (0, 1) or not result.exists():
                return Ended(name, failure=f"{_how(status)}, and no result")
            targets = tuple(Target(**target) for target in json.loads(result.read_text())["targets"])
            result.replace(self.results / f"{name}.json")
            return Ended(name, targets)

    def _run_module(self, name: str, *arguments: str) -> int:
        """Its exit status. Ctrl-C reaches the module too, which then takes its disk away: that is waited for."""
        command = (sys.executable, "-m", f"{self.package}.{name}", *arguments)
        with subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL) as child:
            try:
                return child.wait()
            except KeyboardInterrupt:
                child.wait()
                raise


def _how(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
