"""One load in a process of its own: a Task as JSON on stdin, what came of it as an Outcome on stdout.

    python -m coldctl.jobs.bench.child < task.json

The exit code is 0 for every outcome, and a process that was killed leaves none. The kernel ends it with the process
that started it.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec

from coldctl.jobs.bench.child.outcome import outcome_of
from coldctl.jobs.bench.task import Task
from coldctl.loader.syscalls import end_with_parent


def main() -> None:
    """Never returns: what loaders do at the end of a process is no part of a load, and could fail or hang."""
    end_with_parent()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a loader prints is no part of the document
        task = msgspec.convert(json.load(sys.stdin.buffer), Task)  # msgspec's parser takes no names that are not UTF-8
        answer.write(msgspec.json.encode(outcome_of(task)))
    os._exit(0)


if __name__ == "__main__":
    main()
