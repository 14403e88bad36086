"""What every benchmark takes and gives: rounds and size in; a table, verdicts and a JSON document out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench.child import Sample
from scripts.make_checkpoint import size_argument


@dataclass(frozen=True, slots=True)
class Target:
    """One promised figure: what was wanted, what was found, and whether that is enough."""

    wanted: str
    found: str
    met: bool


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=int, default=rounds, help=f"how often each contender runs (default: {rounds})")
    made.add_argument("--json", type=Path, metavar="FILE", help="write samples, machine and verdicts there")
    return made


def add_size(made: argparse.ArgumentParser, default: str) -> None:
    made.add_argument("--size", type=size_argument, default=default, help=f"of the checkpoint (default: {default})")


def add_folder(made: argparse.ArgumentParser) -> None:
    made.add_argument("--folder", type=Path, help="where the files go (default: the folder for temporary files)")


def print_samples(samples: Mapping[str, Sequence[Sample]], nbytes: int | None = None) -> None:
    """One line a contender: median, least and most seconds, median CPU, and the rate if each run did `nbytes`."""
    print(f"{'':26}{'median s':>10}{'min s':>10}{'max s':>10}{'CPU s':>10}{'GB/s' if nbytes else '':>10}")
    for name, runs in samples.items():
        seconds = [run.seconds for run in runs]
        cells = [median(seconds), min(seconds), max(seconds), median(run.cpu_seconds for run in runs)]
        if nbytes:
            cells.append(nbytes / median(seconds) / 1e9)
        print(f"{name:26}" + "".join(f"{cell:10.3f}" for cell in cells))


def conclude(
    name: str,
    options: argparse.Namespace,
    machine: Mapping[str, object],
    samples: Mapping[str, Sequence[Sample]],
    targets: Sequence[Target],
    **more: Any,
) -> int:
    """Print the verdicts, write the document, and return the exit status: 0 when every target was met, else 1."""
    for target in targets:
        print(f"{'met' if target.met else 'MISSED'}: {target.found}; wanted {target.wanted}")
    if options.json:
        document = {
            "benchmark": name,
            "machine": machine,
            "rounds": options.rounds,
            **more,
            "samples": {contender: [asdict(run) for run in runs] for contender, runs in samples.items()},
            "targets": [asdict(target) for target in targets],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(target.met for target in targets) else 1
