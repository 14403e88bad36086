"""Options that make no sense, whatever the checkpoint; those of the ways to load are the business of `contenders`."""

from __future__ import annotations

from typing import get_args

from coldctl.errors import UsageError
from coldctl.jobs.bench.options import BenchOptions
from coldctl.results.bench import CacheState

MOST_ROUNDS = 10_000


def check(options: BenchOptions) -> None:
    """Raise UsageError for numbers and cache states that do not exist."""
    if not 1 <= options.rounds <= MOST_ROUNDS:
        raise UsageError(f"no such number of rounds: {options.rounds}", hint=f"1 to {MOST_ROUNDS:,}")
    existing = get_args(CacheState)
    if not options.caches or any(cache not in existing for cache in options.caches):
        raise UsageError(f"no such cache state: {', '.join(options.caches)!r}", hint=f"one of {', '.join(existing)}")
    if options.first_layers is not None and options.first_layers < 1:
        raise UsageError("there is at least one first layer")
    if options.memory_fraction is not None and not 0 < options.memory_fraction <= 1:
        raise UsageError("the fraction of the device's memory is over 0, and 1 at most")
    if options.max_regression is not None and not options.max_regression >= 0:  # NaN is none either
        raise UsageError("the most that is no regression is a share, 0 or more")
    if options.max_regression is not None and options.baseline is None:
        raise UsageError(
            "the most that is no regression needs a baseline", hint="give --baseline FILE, a former --json"
        )


def check_for_host(options: BenchOptions, why_host: str | None) -> None:
    """Raise UsageError for what steers a GPU's memory. `why_host` says why loads go to the host, where a GPU would have
    been taken."""
    if options.memory_fraction is not None or options.max_split_size_bytes is not None:
        raise UsageError(
            "a fraction of the device's memory, and a maximum split size, are for loads to a GPU",
            hint=why_host or "leave them out for loads into host memory",
        )
