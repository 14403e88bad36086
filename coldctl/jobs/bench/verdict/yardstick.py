"""Which limit of the machine a load has to be measured by: the least of what every byte of it passes."""

from __future__ import annotations

from typing import NamedTuple

from coldctl.results.bench import BenchRun, Limits

DISK = ("disk_direct", "disk_buffered")
MEMORY = ("memcpy",)
BUS = ("h2d_1", "h2d_2", "h2d_4")

_COPYING = ("buffered", "direct", "ring", "per-tensor")


class Limit(NamedTuple):
    """`name` is that of its field in Limits, without the unit."""

    name: str
    bytes_per_second: float


class Yardstick(NamedTuple):
    """`limit` is null where nothing that the load passes was measured; `unmeasured` names what it passes as well."""

    limit: Limit | None
    unmeasured: tuple[str, ...]


def yardstick(run: BenchRun, limits: Limits, *, on_device: bool) -> Yardstick:
    """The limit of a run that succeeded, by its cache state and the path that was taken.

    Cold bytes come off the disk, by the way of reading that is faster there; so do warm ones that are read past the
    page cache. Other warm bytes are copied out of the page cache, but for those of a mapping, and those of a peer, of
    which nobody knows. On a device all of them pass the bus, on as many streams as are fastest.
    """
    passed = [*_on_host(run), *([BUS] if on_device else [])]
    found = [fastest(limits, names) for names in passed]
    return Yardstick(
        min((each for each in found if each), key=lambda limit: limit.bytes_per_second, default=None),
        tuple(names[0] for names, each in zip(passed, found, strict=True) if each is None),
    )


def reads_directly(run: BenchRun) -> bool:
    """Whether most of it was read past the page cache, where that is known."""
    return run.mode == "gds" or (run.direct_bytes is not None and 2 * run.direct_bytes > run.bytes)


def fastest(limits: Limits, names: tuple[str, ...]) -> Limit | None:
    """The best of several ways over the same part of the machine, as far as they were measured."""
    measured = [Limit(name, rate) for name in names if (rate := rate_of(limits, name))]
    return max(measured, key=lambda limit: limit.bytes_per_second, default=None)


def rate_of(limits: Limits, name: str) -> float | None:
    """The limit called `name`, in bytes a second; null where it was not measured."""
    rate: float | None = getattr(limits, f"{name}_bytes_per_second")
    return rate


def _on_host(run: BenchRun) -> list[tuple[str, ...]]:
    if run.cache == "cold":
        return [DISK]
    if reads_directly(run):
        return [("disk_direct",)]
    return [MEMORY] if run.mode in _COPYING else []
