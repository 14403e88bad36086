"""A budget bounds what comes into memory, as fincore counts it, whatever the order and the device's read-ahead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.jobs.prewarm import PrewarmOptions, prewarm
from coldctl.loader.order import ORDERS, Order
from scripts.make_checkpoint import make_checkpoint
from tests.filesystems import MIB, PAGE, drop, fincore_bytes, loop_filesystem

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", params=[("ext4", 128), ("ext4", 8192), ("xfs", 4096), ("btrfs", 8192)])
def shards(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    kind, read_ahead_kib = request.param
    with loop_filesystem(kind, 600 * MIB) as made:
        number = made.path.stat().st_dev
        bdi = Path(f"/sys/class/bdi/{number >> 8}:{number & 255}") if kind != "btrfs" else _btrfs_bdi()
        setting = bdi / "read_ahead_kb"
        usual = setting.read_text()
        setting.write_text(str(read_ahead_kib))
        made_shards = make_checkpoint(made.path / "model", shape="llama", size_bytes=200 * MIB, shard_bytes=90 * MIB)
        os.sync()
        try:
            yield made_shards
        finally:
            setting.write_text(usual)  # the next user of the loop device would inherit it


def _btrfs_bdi() -> Path:
    """btrfs has a read-ahead of its own for each filesystem; the one mounted last has the highest number."""
    return max(Path("/sys/class/bdi").glob("btrfs-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def make_cold(shards: list[Path]) -> None:
    for _ in range(50):
        for shard in shards:
            drop(shard)
        if not sum(map(fincore_bytes, shards)):
            return
        time.sleep(0.1)
    raise AssertionError("the shards stay in memory")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("budget_bytes", [MIB, 20 * MIB, 77 * MIB])
def test_no_more_comes_in_than_the_budget(shards: list[Path], order: Order, budget_bytes: int) -> None:
    make_cold(shards)
    result = prewarm(PrewarmOptions(str(shards[0].parent), order=order, budget=str(budget_bytes)))
    resident_bytes = sum(map(fincore_bytes, shards))
    assert budget_bytes - 100 * PAGE <= result.read_bytes <= budget_bytes
    assert result.resident_after_bytes is not None
    assert 0 <= resident_bytes - result.resident_after_bytes < len(shards) * PAGE  # fincore counts whole pages
    assert resident_bytes <= budget_bytes


def test_without_a_budget_all_of_it_comes_in(shards: list[Path]) -> None:
    make_cold(shards)
    prewarm(PrewarmOptions(str(shards[0].parent), order="attention-first", budget="none"))
    assert sum(map(fincore_bytes, shards)) == sum(-(-shard.stat().st_size // PAGE) * PAGE for shard in shards)
