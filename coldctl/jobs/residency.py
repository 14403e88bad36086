"""The residency of a whole checkpoint: the sum over its shards, and how far it can be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from coldctl.errors import from_os_error
from coldctl.events import NULL
from coldctl.loader.format.locate import Member, locate
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


def measure_all(path: str, *, cells: int = 0) -> dict[str, Residency]:
    """The residency of every file of the checkpoint at `path`, by the file's path; `cells` as in `measure`.

    Opens nothing for reading, so that what was cold is still cold when it is measured. Raises InputError when there is
    no checkpoint, and what `from_os_error` makes of a file that cannot be opened.
    """
    measured: dict[str, Residency] = {}

    def work(member: Member) -> Iterator[int]:
        try:
            measured[member.path] = measure(member.path, cells=cells)
        except OSError as error:
            raise from_os_error(error, "open", member.path) from error
        yield member.size_bytes

    members, cap = locate(path).members, default_streams_cap()
    share_out(members, lambda: nullcontext(work), NULL, first=cap, cap=cap)
    return {member.path: measured[member.path] for member in members}
