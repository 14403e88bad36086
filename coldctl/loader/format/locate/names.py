"""Names of files: the order people expect, and which names may stand in an index."""

from __future__ import annotations

from itertools import groupby

_PATH_MAX = 4096
_LISTED = 10


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts `shard-2` before `shard-10`. Runs of digits compare by value, however long, and before letters."""
    key = [(0, "")] if name[:1].isdigit() else []
    for is_number, run in groupby(name, str.isdigit):
        text = "".join(run)
        digits = text.lstrip("0")
        key.append((len(digits), digits) if is_number else (0, text))
    return [*key, (0, name)]


def objection(name: str) -> str | None:
    """Why `name` may not be a shard's name, judged by the name alone; None when it may."""
    if name == "":
        return "is empty"
    if len(name) > _PATH_MAX:
        return "is longer than any path may be"
    if "\0" in name:
        return "holds a NUL"
    if "\\" in name:
        return "holds a backslash, which is a separator elsewhere"
    if name.startswith("/") or (name[1:2] == ":" and name[0].isalpha()):
        return "is an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "leads out of the folder"
    if "" in parts or "." in parts:
        return "has an empty step or a single dot in it"
    return None


def some(names: list[str], total: int | None = None) -> str:
    """The first few of `names`, and how many more there are (of `total` in all)."""
    total = len(names) if total is None else total
    shown = ", ".join(names[:_LISTED])
    more = total - min(len(names), _LISTED)
    return f"{shown} and {more:,} more" if more else shown
