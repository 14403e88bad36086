"""What the engines of the table do with what a run writes: the least good of what they do with each tensor."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from coldctl.fp8.conventions import Convention, Seen
from coldctl.fp8.targets import Target
from coldctl.loader.roles import role_of
from coldctl.results.fp8 import EngineVerdict, Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("wrong", "refuses", "untested", "loads")


def verdicts(convention: Convention, targets: Collection[Target]) -> list[EngineVerdict]:
    """One for each engine that `convention` lists, in its order. What is no embedding or head was never tried."""
    roles = {role_of(target.name) for target in targets}
    engines = list(dict.fromkeys(seen.engine for seen in convention.seen))
    return [_verdict([seen for seen in convention.seen if seen.engine == engine], roles) for engine in engines]


def _verdict(rows: list[Seen], roles: AbstractSet[str | None]) -> EngineVerdict:
    concerned = [row for row in rows if not roles.isdisjoint(row.roles)] or rows
    worst = min(concerned, key=lambda row: _WORST_FIRST.index(row.verdict))
    tried = {role for row in rows for role in row.roles}
    if worst.verdict == "loads" and not roles <= tried:
        return EngineVerdict(worst.engine, worst.versions, "untested", "", worst.source)
    return EngineVerdict(worst.engine, worst.versions, worst.verdict, worst.note, worst.source)
