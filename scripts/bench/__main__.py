"""Runs the benchmarks whose figures the README quotes, or those that are named, and keeps their results.

    python -m scripts.bench                          # all that the README quotes, one after the other
    python -m scripts.bench startup memory           # these
    python -m scripts.bench --list                   # which there are, what each needs and how long it takes

Each writes scripts/bench/results/NAME.json once it has ended whole; `python -m tests.docs.readme` brings the figures
into the README. The exit status is 1 when a target was missed, 3 when a benchmark failed, and 5 when something is
missing here; then none was run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from scripts.bench.catalogue import BENCHMARKS, Benchmark
from scripts.bench.suite import Suite

MISSED, FAILED, LACKING = 1, 3, 5


def main() -> int:
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    options = parse_arguments(by_name)
    if options.list:
        print(*map(entry, BENCHMARKS), sep="\n")
        return 0
    chosen = [by_name[name] for name in options.names] or [each for each in BENCHMARKS if each.quoted]
    return run(chosen, Suite(), options.rounds)


def run(benchmarks: Sequence[Benchmark], suite: Suite, rounds: int | None = None) -> int:
    """Run them all, unless something is missing for one, and return the exit status."""
    if missing := lacking(benchmarks):
        print("nothing was run, because something is missing:", *missing, sep="\n  ", file=sys.stderr)
        return LACKING
    names = [benchmark.name for benchmark in benchmarks]
    print(f"about {sum(benchmark.minutes for benchmark in benchmarks)} min for {', '.join(names)}")
    print(f"The machine should have nothing else to do meanwhile. {business()}")
    ended = suite.run(names, rounds)
    print("", *ended, sep="\n")
    if any(each.failure for each in ended):
        return FAILED
    return MISSED if any(each.missed for each in ended) else 0


def parse_arguments(names: Iterable[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        prog="python -m scripts.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="what to run (default: all that the README quotes)")
    made.add_argument(
        "--rounds", type=positive, help="how often each contender runs (default: what each has by itself)"
    )
    made.add_argument("--list", action="store_true", help="show the benchmarks and run none")
    options = made.parse_args()
    if unknown := set(options.names) - set(names):
        made.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    options.names = list(dict.fromkeys(options.names))
    return options


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a number of rounds: {text!r}")
    return int(text)


def entry(benchmark: Benchmark) -> str:
    needs = ", ".join(map(str, benchmark.needs)) or "nothing more"
    quoted = "" if benchmark.quoted else "; by name only: the README does not quote it"
    return f"{benchmark.name}, about {benchmark.minutes} min{quoted}\n  compares {benchmark.compares}\n  needs {needs}"


def lacking(benchmarks: Iterable[Benchmark]) -> list[str]:
    return [
        f"{benchmark.name}: {lack}" for benchmark in benchmarks for need in benchmark.needs if (lack := need.lacking())
    ]


def business() -> str:
    """How busy the machine was in the last minute."""
    return f"Its load average is {os.getloadavg()[0]:.2f}, on {len(os.sched_getaffinity(0))} CPUs."


if __name__ == "__main__":
    sys.exit(main())
