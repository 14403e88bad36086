"""Runs the commands of README.md in order, as a reader would, and compares or rewrites what it says they print.

A block that begins with ```console is a session: lines that start with "$ " are commands, which go on in lines that
start with "> ", and the rest is their output. One that begins with ```console measured prints what differs from run to
run: of that only the ways to load that were compared must be the same, in whatever order.
Parts between `<!-- generated: NAME -->` and `<!-- end -->` come from the code. To rewrite README.md after a change:

    python -m tests.docs.readme
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coldctl.cli.exits import meanings
from coldctl.cli.invocation import COMMANDS
from coldctl.engines import ENGINES, Engine
from coldctl.fp8.conventions import BLOCK, CONVENTIONS, Convention, Seen

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "scripts" / "bench" / "results"

_SESSION = re.compile(r"```(console|console measured)\n(.*?)```", re.DOTALL)
_COMPARED = re.compile(r"^(\S.*?)  +(cold|warm)  ", re.MULTILINE)
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

_VARYING = (
    (re.compile(r"\d+(\.\d+)? [GM]B/s"), "RATE"),
    (re.compile(r"\d+(\.\d+)? s\b"), "TIME"),
    (re.compile(r'(?<=seconds": )[\d.e-]+'), "TIME"),
    (re.compile(r"\d+ streams?"), "STREAMS"),
    (re.compile(r"(\d+ runs?, .*|unknown: .*)$", re.MULTILINE), "EXTENTS"),
    (re.compile(r" on \w+(,|$)", re.MULTILINE), r" on FILESYSTEM\1"),
    (re.compile(r"budget \d.*?\)"), "BUDGET"),
    (re.compile(r"resident: .*? before"), "resident: SOME before"),
    (re.compile(r'(?<=resident_before_bytes": )\d+'), "SOME"),
    (re.compile(r"[\d.]+ MiB (would have to be read|left out)"), r"SOME \1"),
)
"""What another machine prints differently. Everything else must be the same to the letter."""


_MORE = re.compile(r"^>( |$)", re.MULTILINE)


class Step(NamedTuple):
    command: str
    output: str
    measured: bool = False

    @property
    def constant(self) -> str:
        """The part of the output that is the same in every run."""
        if self.measured:
            return "\n".join(sorted(" ".join(match.groups()) for match in _COMPARED.finditer(self.output)))
        return varying_replaced(self.output)


def sessions(text: str) -> list[list[Step]]:
    """The commands of each session in `text`, each with the output that stands below it."""
    return [list(_steps(match[2], measured=match[1] != "console")) for match in _SESSION.finditer(text)]


def run_all(text: str) -> list[list[Step]]:
    """The same sessions with what the commands print now, all of them in one fresh folder with the repo's scripts."""
    with tempfile.TemporaryDirectory(prefix="coldctl-readme-") as folder:
        (Path(folder) / "scripts").symlink_to(ROOT / "scripts")
        return [[_run(step, folder) for step in steps] for steps in sessions(text)]


def varying_replaced(output: str) -> str:
    """`output` without the figures that differ from run to run and from machine to machine."""
    for pattern, word in _VARYING:
        output = pattern.sub(word, output)
    return output


def generated(name: str) -> str:
    """The text that belongs between the markers of `name`."""
    if name == "exit_codes":
        rows = [f"| {code} | {meaning} |" for code, meaning in meanings().items()]
        return "\n".join(["| code | meaning |", "| --- | --- |", *rows, ""])
    if name == "figures":
        return "\n".join(["| benchmark | measured | wanted | met |", "| --- | --- | --- | --- |", *_figures(), ""])
    if name == "fp8":
        stored = [f"| {c.name} | {_stored(c)} | {c.config} |" for c in CONVENTIONS.values()]
        seen = [f"| {c.name} | {_seen(row)} |" for c in CONVENTIONS.values() for row in c.seen]
        heads = ["| --for | stored as | config.json gets |", "| --- | --- | --- |"]
        more_heads = [
            "",
            "| --for | engine | version read | what it does | seen in |",
            "| --- | --- | --- | --- | --- |",
        ]
        return "\n".join([*heads, *stored, *more_heads, *seen, ""])
    if name == "fillers":
        fillers = [f"| {e.name} | {e.versions} | {_refusing(e)} | {e.fillers_source} |" for e in ENGINES]
        heads = ["| engine or loader | version read | model types that fail | seen in |", "| --- | --- | --- | --- |"]
        return "\n".join([*heads, *fillers, ""])
    rows = [f"| {e.name} | {e.versions} | {e.page_cache} | {e.reads} | {e.page_cache_source} |" for e in ENGINES]
    heads = [
        "| engine or loader | version read | page cache | how it reads | seen in |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*heads, *rows, ""])


def _refusing(engine: Engine) -> str:
    """The model types that fail with fillers, in words."""
    if engine.fillers_only_by is not None:
        return f"all but {', '.join(sorted(engine.fillers_only_by))}"
    return ", ".join(sorted(engine.fillers_refused_by)) or "none known"


def _stored(convention: Convention) -> str:
    formats = " or ".join(fmt.upper() for fmt in convention.formats)
    if convention.scale == "none":
        return f"{formats}, no scale"
    shares = {"row": "a row, [rows, 1]", "block": f"{BLOCK} x {BLOCK} values"}[convention.scale]
    dtype = "the model's dtype" if convention.scale_dtype == "model" else convention.scale_dtype
    return f"{formats}, `NAME{convention.scale_suffix}` in {dtype} for {shares}"


def _seen(row: Seen) -> str:
    verdict = {"loads": "loads it", "refuses": "refuses it", "wrong": "**reads it wrong**", "untested": "not tried"}
    role = "" if len(row.roles) > 1 else f"the {row.roles[0]}: "
    note = f", {row.note}" if row.note else ""
    return f"{row.engine} | {row.versions} | {role}{verdict[row.verdict]}{note} | {row.source}"


def _figures() -> Iterator[str]:
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        for target in document["targets"]:
            met = "yes" if target["met"] else "**no**"
            yield f"| {document['benchmark']} | {target['found']} | {target['wanted']} | {met} |"


def generated_parts(text: str) -> dict[str, str]:
    return {match[2]: match[3] for match in _GENERATED.finditer(text)}


def rewritten(text: str) -> str:
    """README.md with fresh outputs and generated parts."""
    fresh = iter(run_all(text))
    text = _SESSION.sub(lambda match: f"```{match[1]}\n" + "".join(map(_as_text, next(fresh))) + "```", text)
    return _GENERATED.sub(lambda match: match[1] + generated(match[2]) + match[4], text)


def _steps(block: str, *, measured: bool) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, *lines = part.splitlines(keepends=True)
        more = list(itertools.takewhile(lambda line: _MORE.match(line), lines))
        command = "".join([first, *(_MORE.sub("", line) for line in more)]).removesuffix("\n")
        yield Step(command, "".join(lines[len(more) :]), measured)


def _run(step: Step, folder: str) -> Step:
    quiet = {f"COLDCTL_{name.upper()}_QUIET": "1" for name in COMMANDS}
    plain = {key: value for key, value in os.environ.items() if key not in ("GITHUB_ACTIONS", "FORCE_COLOR")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", step.command],
        cwd=folder,
        env={**plain, **quiet, "PATH": path, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return step._replace(output=done.stdout)


def _as_text(step: Step) -> str:
    first, *more = step.command.split("\n")
    lines = [f"$ {first}", *(f"> {line}".rstrip() for line in more)]
    return "\n".join([*lines, step.output])


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
