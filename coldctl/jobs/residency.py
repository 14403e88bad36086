"""The residency of a whole checkpoint: the sum over its shards, and how far it can be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from coldctl.errors import from_os_error
from coldctl.events import NULL
from coldctl.loader.format.checkpoint import Checkpoint, open_located
from coldctl.loader.format.locate import locate
from coldctl.loader.pages.residency import Residency, measure
from coldctl.loader.pool import default_streams_cap, share_out


@dataclass(frozen=True, slots=True)
class Totals:
    """`resident_bytes` is null, with `reason`, as soon as one shard's is; `method` is the least exact of all."""

    resident_bytes: int | None
    method: str | None
    bound_bytes: int
    reason: str | None

    @staticmethod
    def of(measured: Iterable[Residency]) -> Totals:
        listed = list(measured)
        known = [found.resident_bytes for found in listed if found.resident_bytes is not None]
        reasons = [found.reason for found in listed if found.reason]
        methods = {found.method for found in listed}
        return Totals(
            resident_bytes=sum(known) if len(known) == len(listed) else None,
            method=next((method for method in (None, "sampled", "mincore") if method in methods), None),
            bound_bytes=sum(found.bound_bytes for found in listed),
            reason=reasons[0] if reasons else None,
        )


Measured = dict[str, Residency]
"""The residency of each shard, by its name."""


def open_measured(path: str, *, cells: int = 0) -> tuple[Checkpoint, Measured]:
    """The checkpoint at `path`, and the residency that its shards had before a byte of them was read; `cells` as in
    `measure`.

    Raises what `open_checkpoint` raises.
    """
    located = locate(path)
    before = measure_all({member.name: member.path for member in located.members}, cells)
    return open_located(located), before


def measure_again(checkpoint: Checkpoint) -> Measured:
    """The residency of the shards now."""
    return measure_all({shard.name: shard.path for shard in checkpoint.shards})


def measure_all(paths: Mapping[str, str], cells: int = 0) -> Measured:
    """The residency of the files at `paths`, by the names that they have there. Raises what opening one makes of it."""
    measured: Measured = {}

    def work(name: str) -> Iterator[int]:
        try:
            measured[name] = measure(paths[name], cells=cells)
        except OSError as error:
            raise from_os_error(error, "open", paths[name]) from error
        yield 0

    cap = default_streams_cap()
    share_out(paths, lambda: nullcontext(work), NULL, first=cap, cap=cap)
    return {name: measured[name] for name in paths}
