"""How many bytes may be brought into the page cache without pushing out what the engine needs.

Page cache is charged to the cgroup that reads first, so the machine's free memory is only half the answer: beyond a
cgroup's limit every page read pushes out an earlier one, without an error, and the read was for nothing. Kernel
documentation: admin-guide/cgroup-v1/memory.rst, admin-guide/cgroup-v2.rst, cgroup_namespaces(7).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from coldctl.loader.host.memory import read_kib
from coldctl.loader.host.mounts import Mount, read_mounts
from coldctl.units import GIB, format_size

_MOST_RESERVE_BYTES = 4 * GIB
# A v1 limit that was never set reads as the largest number of whole pages in a signed 64-bit integer.
_NO_LIMIT_FROM = 1 << 62


@dataclass(frozen=True, slots=True)
class Budget:
    """`budget_bytes` bounds what a run may newly read; pages that are resident already are paid for.

    budget = 0.9 * (headroom - reserve), at least 0. `headroom_bytes` is the smallest of MemAvailable and, for each
    visible cgroup from the caller's up, limit - usage + page cache that can be dropped, each less the checkpoint's own
    pages that may be in that cache; `limited_by` names which
    (`MemAvailable` or the cgroup's folder). `limit_bytes` is the tightest cgroup limit, null when there is none.
    `hidden_ancestors` says that there are cgroups above whose limits this process cannot see. `reason` puts it in a
    sentence.
    """

    headroom_bytes: int
    reserve_bytes: int
    budget_bytes: int
    limit_bytes: int | None
    limited_by: str
    hidden_ancestors: bool
    reason: str


class _Level(NamedTuple):
    """One cgroup with a limit, in bytes: `cache` is its page cache on the kernel's file lists, active and inactive."""

    name: str
    limit: int
    usage: int
    cache: int


class _Place(NamedTuple):
    """Where the caller's cgroup shows: `folders` from its own up to the mount's top."""

    folders: list[str]
    version: int
    hidden: bool


def budget(root: str = "/", *, resident_bytes: int = 0) -> Budget:
    """The budget of this process, now. `root` is where /proc and the cgroup mounts are looked for.

    `resident_bytes` of the checkpoint are in memory already. They may be part of the page cache that a limit leaves
    room for by dropping it, and dropping them is no gain: so they are not counted as free, as far as that cache may
    hold them.

    Limits of cgroups that a namespace hides are not seen; then `hidden_ancestors` is true and the real headroom may be
    smaller. Raises EnvironmentLacksError without a readable /proc/meminfo.
    """
    meminfo = os.path.join(root, "proc/meminfo")
    total, available = read_kib(meminfo, "MemTotal"), read_kib(meminfo, "MemAvailable")
    place = _place(root)
    levels = _levels(place, root)
    machine_cache = read_kib(meminfo, "Active(file)") + read_kib(meminfo, "Inactive(file)")
    headroom, limited_by = max(0, available - min(resident_bytes, machine_cache)), "MemAvailable"
    for level in levels:
        left = max(0, level.limit - level.usage + level.cache - min(resident_bytes, level.cache))
        if left < headroom:
            headroom, limited_by = left, level.name
    limit = min((level.limit for level in levels), default=None)
    reserve = min(_MOST_RESERVE_BYTES, min(limit or total, total) // 10)
    allowed = max(0, (headroom - reserve) * 9 // 10)
    hidden = place is None or place.hidden
    reason = f"{format_size(headroom)} free by {limited_by}, less {format_size(reserve)} for the engine, less 10 %"
    if hidden:
        reason += "; cgroups above this one are hidden and may allow less"
    return Budget(headroom, reserve, allowed, limit, limited_by, hidden, reason)


def _levels(place: _Place | None, root: str) -> list[_Level]:
    if place is None:
        return []
    read_level = _level_v1 if place.version == 1 else _level_v2
    found = (read_level(folder, _shown(folder, root)) for folder in place.folders)
    return [level for level in found if level is not None]


def _place(root: str) -> _Place | None:
    """The caller's memory cgroup: that of the v1 memory controller where it is mounted, else the unified one (v2).

    None when no mount shows it. On a hybrid host the v2 tree is there too, but has no memory controller.
    """
    paths = _own_paths(root)
    mounts = read_mounts(os.path.join(root, "proc"))
    for version, path in sorted(paths.items()):
        for mount in mounts:
            if _carries_memory(mount, version):
                return _located(mount, path, version, root)
    return None


def _own_paths(root: str) -> dict[int, str]:
    """The caller's path in the hierarchy of the v1 memory controller (1) and in the unified one (2)."""
    paths = {}
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                number, controllers, path = line.rstrip("\n").split(":", 2)
                if "memory" in controllers.split(","):
                    paths[1] = path
                elif number == "0" and not controllers:
                    paths[2] = path
    except OSError:
        return {}
    return paths


def _carries_memory(mount: Mount, version: int) -> bool:
    if version == 2:
        return mount.filesystem == "cgroup2"
    return mount.filesystem == "cgroup" and "memory" in mount.options.split(",")


def _located(mount: Mount, path: str, version: int, root: str) -> _Place:
    """The folders under `mount` from the cgroup `path` up.

    A mount may show only a part of the hierarchy (`mount.root`, as in a container without a cgroup namespace). In a
    namespace both paths are relative to its root and may begin with `/..`; then what is between is not known by name.
    """
    top = os.path.join(root, mount.point.lstrip("/"))
    outside = mount.root.startswith("/..") or path.startswith("/..")
    inside = path == mount.root or path.startswith(mount.root.rstrip("/") + "/")
    relative = path[len(mount.root.rstrip("/")) :].strip("/") if inside and not outside else ""
    folders = [top]
    for part in filter(None, relative.split("/")):
        folders.append(os.path.join(folders[-1], part))
    visible = [folder for folder in folders if Path(folder).is_dir()]
    hidden = outside or not inside or visible != folders or not _is_hierarchy_root(top, version)
    return _Place(visible[::-1], version, hidden)


def _is_hierarchy_root(top: str, version: int) -> bool:
    """Whether a mount's top is the root of all cgroups: in v1 only that has `release_agent`, in v2 only that lacks
    `cgroup.type`."""
    if version == 1:
        return Path(top, "release_agent").exists()
    return not Path(top, "cgroup.type").exists()


def _level_v1(folder: str, name: str) -> _Level | None:
    stat = _read_stat(os.path.join(folder, "memory.stat"))
    own = _read_number(os.path.join(folder, "memory.limit_in_bytes"))
    # The kernel's minimum over all ancestors, so a hidden one's limit is seen here, though not what it uses.
    limits = [limit for limit in (own, stat.get("hierarchical_memory_limit")) if limit is not None]
    usage = _read_number(os.path.join(folder, "memory.usage_in_bytes"))
    if usage is None or not limits or min(limits) >= _NO_LIMIT_FROM:
        return None
    return _Level(name, min(limits), usage, stat.get("total_active_file", 0) + stat.get("total_inactive_file", 0))


def _level_v2(folder: str, name: str) -> _Level | None:
    """memory.high does not kill, but slows the cgroup down to a crawl, so it counts as a limit."""
    found = (_read_number(os.path.join(folder, file)) for file in ("memory.max", "memory.high"))
    limits = [limit for limit in found if limit is not None]
    usage = _read_number(os.path.join(folder, "memory.current"))
    if usage is None or not limits:
        return None
    stat = _read_stat(os.path.join(folder, "memory.stat"))
    return _Level(name, min(limits), usage, stat.get("active_file", 0) + stat.get("inactive_file", 0))


def _read_number(path: str) -> int | None:
    """The number in a cgroup file; None for `max` and for a file that is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _read_stat(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            return {key: int(value) for key, value in map(str.split, file)}
    except (OSError, ValueError):
        return {}


def _shown(folder: str, root: str) -> str:
    """The folder as the caller's system names it, without the root that a test put before it."""
    return folder if root == "/" else "/" + os.path.relpath(folder, root)
