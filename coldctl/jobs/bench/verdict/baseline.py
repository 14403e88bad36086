"""A former result as the baseline of this one, read from its JSON document."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec

from coldctl.errors import InputError, UsageError, from_os_error
from coldctl.jobs.bench.options import BenchOptions
from coldctl.loader.regular import NotRegularError, opened, read_at
from coldctl.results.bench import CacheState
from coldctl.results.bench_runs import SecondsByRound

SCHEMA = "coldctl.bench/1"
_MAX_BYTES = 256 << 20
_MOST_ROUNDS = 10_000
_CHANGE_A_LOAD = ("verify", "first_layers", "memory_fraction", "max_split_size_bytes")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
"""What a clock of nanoseconds can have measured."""

Way = tuple[str, CacheState]
"""A contender's name, and a cache state."""


class Run(msgspec.Struct, frozen=True):
    contender: str
    cache: CacheState
    round: _Count
    seconds: _Seconds | None
    error: str | None
    content_sum: str | None


class Device(msgspec.Struct, frozen=True):
    name: str
    driver: str | None


class Host(msgspec.Struct, frozen=True):
    cpu: str
    cpus: _Count
    kernel: str
    virtual: str | None
    filesystem: str
    block_device: str | None
    device: Device | None
    versions: dict[str, str | None]


class Baseline(msgspec.Struct, frozen=True):
    """What of a BenchResult's document is compared; each run stands there once."""

    schema: str
    command: str
    device: str
    bytes: _Count
    tensors: _Count
    verify: bool
    first_layers: _Count | None
    memory_fraction: float | None
    max_split_size_bytes: _Count | None
    host: Host
    runs: list[Run]

    def ways(self) -> list[Way]:
        """Those that were run, whether they loaded or not."""
        return list(dict.fromkeys((run.contender, run.cache) for run in self.runs))

    def seconds_by_round(self, way: Way) -> SecondsByRound:
        """Of the runs that succeeded."""
        of_way = (run for run in self.runs if (run.contender, run.cache) == way)
        return {run.round: run.seconds for run in of_way if run.error is None and run.seconds}


class _Schema(msgspec.Struct):
    schema: str = ""


def read_baseline(path: str) -> Baseline:
    """The baseline in the file at `path`, which `coldctl bench --json` wrote.

    Raises InputError for a file that is something else or holds what cannot have been measured, and what
    `from_os_error` makes of one that cannot be read.
    """
    raw = _read(path)
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
        if schema != SCHEMA:
            raise _no_baseline(path, f"its schema is {schema!r}, expected {SCHEMA!r}")
        baseline = msgspec.json.decode(raw, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_baseline(path, str(error)) from error
    if fault := _contradiction(baseline):
        raise _no_baseline(path, fault)
    return baseline


def require_comparable(
    baseline: Baseline, options: BenchOptions, *, gpu: str | None, nbytes: int, tensors: int, ways: Iterable[Way]
) -> None:
    """Raise UsageError when the baseline is of another checkpoint or device, was made with other options that change
    what a load does, or has none of `ways`, which are to run.

    The device of `options` is one that was found; `gpu` is its name, where it is a GPU and known.
    """
    device = options.device
    if (baseline.bytes, baseline.tensors) != (nbytes, tensors):
        theirs, ours = f"{baseline.bytes:,} bytes in {baseline.tensors:,}", f"{nbytes:,} bytes in {tensors:,}"
        raise _other(f"the baseline is of another checkpoint: {theirs} tensors, this one has {ours}")
    if _kind(baseline.device) != _kind(device):
        raise _other(f"the baseline was loaded to {baseline.device!r}, this is {device!r}")
    theirs_gpu = baseline.host.device.name if baseline.host.device else None
    if _kind(device) != "cpu" and gpu and theirs_gpu and gpu != theirs_gpu:
        raise _other(f"the baseline was loaded to a {theirs_gpu!r}, this is a {gpu!r}")
    if others := [name for name in _CHANGE_A_LOAD if getattr(baseline, name) != getattr(options, name)]:
        raise _other(f"the baseline was made with other options: {_both(baseline, options, others)}")
    if not set(baseline.ways()) & set(ways):
        raise _other("the baseline has none of the ways to load that are to be run, in the same cache state")


def _both(baseline: Baseline, options: BenchOptions, names: Iterable[str]) -> str:
    pairs = ((name, getattr(baseline, name), getattr(options, name)) for name in names)
    return "; ".join(
        f"{name} {then or 'not asked for'} there, {now or 'not asked for'} here" for name, then, now in pairs
    )


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _contradiction(baseline: Baseline) -> str | None:
    if baseline.command != "bench":
        return f"its command is {baseline.command!r}, expected 'bench'"
    if len({(run.contender, run.cache, run.round) for run in baseline.runs}) < len(baseline.runs):
        return "it lists a run twice"
    most = max(Counter((run.contender, run.cache) for run in baseline.runs).values(), default=0)
    return (
        f"it has {most:,} rounds of one contender, {_MOST_ROUNDS:,} at most are read" if most > _MOST_ROUNDS else None
    )


def _read(path: str) -> bytes:
    try:
        with opened(path) as (descriptor, status):
            if status.st_size > _MAX_BYTES:
                raise _no_baseline(path, f"it is over {_MAX_BYTES:,} bytes")
            return read_at(descriptor, 0, status.st_size)
    except NotRegularError as error:
        raise _no_baseline(path, f"it is {error.kind}, not a regular file") from error
    except OSError as error:
        raise from_os_error(error, "read", path) from error


def _no_baseline(path: str, why: str) -> InputError:
    return InputError(f"{os.fspath(path)} is no baseline: {why}", hint="write one with coldctl bench --json", file=path)


def _other(message: str) -> UsageError:
    return UsageError(message, hint="compare with a result of the same checkpoint, device and options")
