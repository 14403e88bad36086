"""coldctl.loader.host.budget on trees of files as kernels show them; the expected numbers are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldctl.errors import EnvironmentLacksError
from coldctl.loader.host.budget import budget
from coldctl.loader.host.memory import rss_anon_bytes

GIB = 1 << 30
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = "41 31 0:38 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
V2_HYBRID = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
UNLIMITED_V1 = 9223372036854771712


def machine(
    root: Path,
    *,
    total: int = 64 * GIB,
    available: int = 60 * GIB,
    cache: tuple[int, int] = (0, 0),
    mounts: str = "",
    cgroup: str = "0::/\n",
) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {total >> 10} kB\nMemFree:         1 kB\nMemAvailable:   {available >> 10} kB\n"
        f"Active(file):   {cache[0] >> 10} kB\nInactive(file): {cache[1] >> 10} kB\n"
    )
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(cgroup)


def v1(
    root: Path, path: str, *, limit: int, usage: int, cache: tuple[int, int] = (0, 0), above: int | None = None
) -> None:
    folder = root / "sys/fs/cgroup/memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(
        "cache 12345\nactive_file 1\ninactive_file 2\n"
        f"hierarchical_memory_limit {limit if above is None else above}\n"
        f"total_active_file {cache[0]}\ntotal_inactive_file {cache[1]}\n"
    )


def v2(
    root: Path, path: str, *, most: str = "max", high: str = "max", usage: int = 0, cache: tuple[int, int] = (0, 0)
) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.type").write_text("domain\n")
    (folder / "memory.max").write_text(most + "\n")
    (folder / "memory.high").write_text(high + "\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 7\nfile 8\nactive_file {cache[0]}\ninactive_file {cache[1]}\n")


def test_without_limits_the_machine_decides(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/app\n")
    v2(tmp_path, "app", usage=5 * GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.reserve_bytes) == (60 * GIB, 4 * GIB)  # 10 % of 64 GiB would be more than 4
    assert found.budget_bytes == 56 * GIB * 9 // 10
    assert (found.limit_bytes, found.limited_by, found.hidden_ancestors) == (None, "MemAvailable", False)


def test_reserve_of_a_small_machine_is_a_tenth_of_it(tmp_path: Path) -> None:
    machine(tmp_path, total=10 * GIB, available=5 * GIB, mounts=V2.format(root="/"))
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    found = budget(str(tmp_path))
    assert (found.reserve_bytes, found.budget_bytes) == (GIB, 4 * GIB * 9 // 10)


def test_own_pages_in_the_cgroups_cache_are_not_free(tmp_path: Path) -> None:
    """A second run must not count what the first brought in as room, or it would push that out again."""
    machine(tmp_path, cache=(10 * GIB, 20 * GIB), mounts=V2.format(root="/"), cgroup="0::/app\n")
    v2(tmp_path, "app", most=str(8 * GIB), usage=7 * GIB, cache=(GIB, 5 * GIB))
    assert budget(str(tmp_path)).headroom_bytes == 7 * GIB  # 8 - 7 + 6
    assert budget(str(tmp_path), resident_bytes=2 * GIB).headroom_bytes == 5 * GIB
    # Of 50 GiB that are resident, no more than the 6 GiB of cache can be charged here.
    assert budget(str(tmp_path), resident_bytes=50 * GIB).headroom_bytes == GIB


def test_own_pages_in_the_machines_cache_are_not_free(tmp_path: Path) -> None:
    machine(tmp_path, cache=(10 * GIB, 20 * GIB), mounts=V2.format(root="/"))
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    assert budget(str(tmp_path), resident_bytes=25 * GIB).headroom_bytes == 35 * GIB
    assert budget(str(tmp_path), resident_bytes=99 * GIB).headroom_bytes == 30 * GIB


def test_v2_limit_less_usage_plus_droppable_cache(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/app\n")
    v2(tmp_path, "app", most=str(20 * GIB), usage=12 * GIB, cache=(3 * GIB, 2 * GIB))
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limit_bytes, found.limited_by) == (13 * GIB, 20 * GIB, "/sys/fs/cgroup/app")
    assert found.reserve_bytes == 2 * GIB
    assert found.budget_bytes == 11 * GIB * 9 // 10
    assert "13.0 GiB" in found.reason
    assert "/sys/fs/cgroup/app" in found.reason


def test_v2_high_counts_as_a_limit(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/app\n")
    v2(tmp_path, "app", most=str(20 * GIB), high=str(10 * GIB), usage=4 * GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limit_bytes, found.reserve_bytes) == (6 * GIB, 10 * GIB, GIB)


def test_v2_the_tightest_of_nested_cgroups_wins(tmp_path: Path) -> None:
    """The outer limit is larger, but its other members have used more of it."""
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/kube/pod/app\n")
    v2(tmp_path, "kube", most=str(30 * GIB), usage=28 * GIB, cache=(GIB, 0))
    v2(tmp_path, "kube/pod")
    v2(tmp_path, "kube/pod/app", most=str(8 * GIB), usage=2 * GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limited_by) == (3 * GIB, "/sys/fs/cgroup/kube")
    assert found.limit_bytes == 8 * GIB
    assert found.reserve_bytes == 8 * GIB // 10


def test_nothing_is_left(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/app\n")
    v2(tmp_path, "app", most=str(2 * GIB), usage=3 * GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.budget_bytes) == (0, 0)


def test_a_private_v2_namespace_hides_what_is_above(tmp_path: Path) -> None:
    """In a container the mount's top is `/`, and is told from the real root by having cgroup.type and memory.max."""
    machine(tmp_path, mounts=V2.format(root="/"), cgroup="0::/\n")
    v2(tmp_path, "", most=str(4 * GIB), usage=GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limited_by) == (3 * GIB, "/sys/fs/cgroup")
    assert found.hidden_ancestors
    assert "hidden" in found.reason


def test_a_namespace_entered_without_a_new_mount(tmp_path: Path) -> None:
    """`unshare --cgroup` alone: the mount's root shows as `/../..`; its top is visible, what lies between is not."""
    machine(tmp_path, mounts=V2.format(root="/../.."), cgroup="0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    found = budget(str(tmp_path))
    assert found.hidden_ancestors
    assert found.limited_by == "MemAvailable"


def test_v1_counts_the_whole_tree_below(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V1_CPU + V1.format(root="/"), cgroup="5:cpu:/\n4:memory:/app\n0::/\n")
    v1(tmp_path, "", limit=UNLIMITED_V1, usage=40 * GIB)
    (tmp_path / "sys/fs/cgroup/memory/release_agent").touch()
    v1(tmp_path, "app", limit=10 * GIB, usage=9 * GIB, cache=(2 * GIB, 3 * GIB))
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limit_bytes) == (6 * GIB, 10 * GIB)
    assert (found.limited_by, found.hidden_ancestors) == ("/sys/fs/cgroup/memory/app", False)


def test_v1_sentinel_is_no_limit(tmp_path: Path) -> None:
    machine(tmp_path, mounts=V1.format(root="/"), cgroup="4:memory:/app\n")
    v1(tmp_path, "app", limit=UNLIMITED_V1, usage=9 * GIB)
    (tmp_path / "sys/fs/cgroup/memory/release_agent").touch()
    found = budget(str(tmp_path))
    assert (found.limit_bytes, found.limited_by) == (None, "MemAvailable")


def test_v1_container_without_a_namespace_sees_only_its_own_folder(tmp_path: Path) -> None:
    """Docker on v1: the mount shows /docker/abc at its top, and a hidden parent's limit only in memory.stat."""
    machine(tmp_path, mounts=V1.format(root="/docker/abc"), cgroup="4:memory:/docker/abc\n")
    v1(tmp_path, "", limit=UNLIMITED_V1, usage=2 * GIB, above=6 * GIB)
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limit_bytes) == (4 * GIB, 6 * GIB)
    assert found.hidden_ancestors


def test_hybrid_takes_the_v1_controller(tmp_path: Path) -> None:
    """systemd's hybrid layout: memory is v1, and the unified tree beside it has no memory files."""
    machine(tmp_path, mounts=V2_HYBRID + V1.format(root="/"), cgroup="4:memory:/app\n0::/other\n")
    (tmp_path / "sys/fs/cgroup/unified/other").mkdir(parents=True)
    v1(tmp_path, "app", limit=8 * GIB, usage=GIB)
    (tmp_path / "sys/fs/cgroup/memory/release_agent").touch()
    found = budget(str(tmp_path))
    assert (found.headroom_bytes, found.limited_by) == (7 * GIB, "/sys/fs/cgroup/memory/app")


def test_no_cgroup_mount_at_all(tmp_path: Path) -> None:
    machine(tmp_path, cgroup="0::/app\n")
    found = budget(str(tmp_path))
    assert (found.limited_by, found.hidden_ancestors) == ("MemAvailable", True)


def test_no_proc(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="meminfo"):
        budget(str(tmp_path))


def test_this_machine() -> None:
    found = budget()
    assert 0 <= found.budget_bytes <= found.headroom_bytes


def test_rss_anon_grows_with_what_is_touched() -> None:
    before = rss_anon_bytes()
    block = bytearray(b"x" * (64 << 20))
    assert rss_anon_bytes() - before >= 63 << 20  # counted in batches of pages
    assert len(block) == 64 << 20
