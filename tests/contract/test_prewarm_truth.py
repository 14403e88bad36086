"""What prewarm says is true where memory is short, and for users to whom the kernel does not tell all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldctl.jobs.evict import EvictOptions, evict
from coldctl.jobs.prewarm import PrewarmOptions, prewarm
from coldctl.jobs.status import StatusOptions, status
from coldctl.loader.pages.residency import measure
from coldctl.results.pages import WarmResult
from scripts.make_checkpoint import make_checkpoint
from tests.filesystems import (
    MIB,
    PAGE,
    as_nobody,
    drop,
    fincore_bytes,
    in_child,
    loop_filesystem,
    memory_cgroup,
    overlayfs,
)

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with loop_filesystem("ext4", 800 * MIB) as made:
        make_checkpoint(made.path / "model", shape="llama", size_bytes=300 * MIB, shard_bytes=400 * MIB)
        os.sync()
        os.chmod(made.path, 0o755)
        yield made.path


@pytest.fixture
def shard(disk: Path) -> Path:
    (found,) = (disk / "model").glob("*.safetensors")
    drop(found)
    assert fincore_bytes(found) == 0
    return found


def entering(folder: Path) -> Callable[[], object]:
    return lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))


def warm(shard: Path, budget: str = "auto") -> WarmResult:
    return prewarm(PrewarmOptions(str(shard.parent), budget=budget))


def test_a_second_run_under_a_limit_keeps_what_the_first_brought_in(shard: Path) -> None:
    with memory_cgroup(200 * MIB) as folder:
        first = in_child(lambda: warm(shard), prepare=entering(folder))
        missing = measure(str(shard)).missing
        second = in_child(lambda: warm(shard), prepare=entering(folder))
    assert first.incomplete_reason == second.incomplete_reason == "budget"
    assert 100 * MIB < first.read_bytes < 200 * MIB
    assert missing is not None
    assert missing[0][0] >= 100 * MIB  # the head is warm
    assert second.read_bytes < 40 * MIB
    still_missing = measure(str(shard)).missing
    assert still_missing is not None
    assert still_missing[0][0] >= missing[0][0]


def test_all_that_was_read_and_did_not_stay_is_not_called_complete(shard: Path) -> None:
    with memory_cgroup(150 * MIB) as folder:
        result = in_child(lambda: warm(shard, budget="none"), prepare=entering(folder))
    assert result.resident_after_bytes is not None
    assert result.resident_after_bytes < 160 * MIB
    assert (result.complete, result.incomplete_reason) == (False, "left-memory")


def test_neither_is_it_for_a_user_who_is_told_a_sample_only(shard: Path) -> None:
    os.chmod(shard, 0o644)
    with memory_cgroup(150 * MIB) as folder:

        def enter_as_nobody() -> None:
            entering(folder)()
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)

        result = in_child(lambda: warm(shard, budget="none"), prepare=enter_as_nobody)
    assert result.residency_method == "sampled"
    assert (result.complete, result.incomplete_reason) == (False, "left-memory")


def test_a_user_who_is_told_a_sample_hears_complete_when_it_is(shard: Path) -> None:
    os.chmod(shard, 0o644)
    result = as_nobody(lambda: warm(shard, budget="none"))
    assert result.residency_method == "sampled"
    assert result.complete
    assert fincore_bytes(shard) == -(-shard.stat().st_size // PAGE) * PAGE


def test_where_nothing_is_told_nothing_is_called_complete(disk: Path, shard: Path) -> None:
    os.chmod(shard, 0o644)
    with overlayfs(disk) as merged:
        result = as_nobody(lambda: warm(merged / "model" / shard.name, budget="none"))
    assert result.resident_after_bytes is None
    assert (result.complete, result.incomplete_reason) == (False, "unproved")
    assert fincore_bytes(shard) == -(-shard.stat().st_size // PAGE) * PAGE


def test_looking_by_sample_does_not_warm(shard: Path) -> None:
    os.chmod(shard, 0o644)
    header_bytes = 256 * 1024  # the header is read, with the kernel's first read-ahead
    as_nobody(lambda: [status(StatusOptions(str(shard.parent))) for _ in range(3)])
    assert fincore_bytes(shard) <= header_bytes
    as_nobody(lambda: warm(shard, budget="1MiB"))
    result = as_nobody(lambda: evict(EvictOptions(str(shard.parent))))
    assert result.resident_after_bytes == 0
    assert not result.complete  # a sample proves nothing of the pages between
    assert fincore_bytes(shard) <= 16 * PAGE  # a probe's read may still be on its way when it is dropped
