"""prewarm through its Python API, on a disk of its own; what is resident is asked of util-linux's fincore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import ChangedError, InputError, RefusedError, StoppedError, UsageError
from coldctl.events import Events
from coldctl.jobs.prewarm import PrewarmOptions, decision, prewarm, warming
from coldctl.loader.host.budget import Budget
from coldctl.results.pages import WarmResult
from tests.filesystems import drop, fincore_bytes, loop_filesystem, run
from tests.tiny import header_of, made, write_shard, write_sharded

pytestmark = pytest.mark.root

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with loop_filesystem("ext4", 128 * MIB) as filesystem:
        yield filesystem.path


@pytest.fixture
def cold(disk: Path) -> Iterator[list[Path]]:
    """Two files of 8 MiB that are on the disk and not in memory. The second one's tensor comes first in `layers`."""
    folder = disk / "model"
    folder.mkdir()
    paths = write_sharded(
        folder, [{"lm_head.weight": made("U8", 8 * MIB)}, {"model.embed.weight": made("U8", 8 * MIB)}]
    )
    run("sync", *map(str, paths))
    for path in paths:
        drop(path)
        assert fincore_bytes(path) == 0
    yield paths
    shutil.rmtree(folder)


def warm(paths: list[Path], events: Events | None = None, **options: Any) -> WarmResult:
    return prewarm(PrewarmOptions(str(paths[0].parent), **options), events or Events())


def whole_pages(path: Path) -> int:
    return -(-path.stat().st_size // PAGE) * PAGE


def test_everything_is_resident_afterwards(cold: list[Path]) -> None:
    result = warm(cold)
    assert [fincore_bytes(path) for path in cold] == [whole_pages(path) for path in cold]
    size = sum(path.stat().st_size for path in cold)
    assert result.bytes == result.resident_after_bytes == size
    # Looking at the headers brought their pages in, and a little of what follows them.
    assert result.resident_before_bytes is not None
    assert result.resident_before_bytes < 2 * MIB
    assert result.planned_bytes == result.read_bytes == size - result.resident_before_bytes
    assert (result.complete, result.failed, result.filesystem) == (True, [], "ext4")
    assert result.residency_method == "mincore"
    assert result.reader in ("populate", "pread")
    assert result.streams >= 1
    assert result.seconds > 0


def test_a_warm_checkpoint_is_left_alone(cold: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    warm(cold)
    monkeypatch.setattr(warming, "share_out", None)
    result = warm(cold)
    assert (result.read_bytes, result.planned_bytes, result.streams) == (0, 0, 0)
    assert result.resident_before_bytes == result.resident_after_bytes == result.bytes
    assert result.complete


def test_only_what_is_missing_is_read(cold: list[Path]) -> None:
    run("vmtouch", "-qt", "-p", "2M-5M", str(cold[0]))
    run("vmtouch", "-qt", str(cold[1]))
    result = warm(cold)
    assert result.read_bytes <= 5 * MIB + cold[0].stat().st_size - 8 * MIB
    assert [fincore_bytes(path) for path in cold] == [whole_pages(path) for path in cold]


def test_a_dry_run_plans_and_reads_nothing(cold: list[Path]) -> None:
    result = warm(cold, dry_run=True)
    assert (result.dry_run, result.read_bytes, result.streams) == (True, 0, 0)
    assert result.resident_before_bytes is not None
    assert result.planned_bytes == result.bytes - result.resident_before_bytes
    assert sum(fincore_bytes(path) for path in cold) < 2 * MIB


def test_a_budget_bounds_what_is_read_and_the_order_says_what(cold: list[Path]) -> None:
    result = warm(cold, order="layers", budget=str(8 * MIB + 2 * 4096))
    assert result.budget_bytes == 8 * MIB + 2 * 4096
    assert result.read_bytes <= 8 * MIB + 2 * 4096
    assert not result.complete
    assert fincore_bytes(cold[1]) == whole_pages(cold[1])
    assert fincore_bytes(cold[0]) < 2 * MIB


def test_the_first_shard_is_warmed_first_by_name(cold: list[Path]) -> None:
    result = warm(cold, order="name", budget="8MiB")
    assert result.read_bytes == 8 * MIB
    assert fincore_bytes(cold[0]) >= 7 * MIB
    assert fincore_bytes(cold[1]) < 2 * MIB


def test_a_budget_of_nothing_reads_nothing(cold: list[Path]) -> None:
    result = warm(cold, budget="0")
    assert (result.read_bytes, result.complete, result.budget_bytes) == (0, False, 0)


def test_resident_pages_do_not_count_against_the_budget(cold: list[Path]) -> None:
    run("vmtouch", "-qt", str(cold[0]))
    result = warm(cold, budget="9MiB")
    assert result.complete
    assert [fincore_bytes(path) for path in cold] == [whole_pages(path) for path in cold]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("none", None),
        ("auto", 4000),
        ("60%", 6000),
        ("0.5", 5000),
        (".5", 5000),
        ("1.0", 10_000),
        ("100%", 10_000),
        ("7", 7),
        ("0.5MiB", MIB // 2),
        ("1.05MB", 1_050_000),
        ("20GiB", 20 << 30),
    ],
)
def test_budgets_are_shares_of_the_headroom_or_sizes(
    cold: list[Path], monkeypatch: pytest.MonkeyPatch, text: str, budget: int | None
) -> None:
    found = Budget(
        headroom_bytes=10_000,
        reserve_bytes=1,
        budget_bytes=4000,
        limit_bytes=None,
        limited_by="MemAvailable",
        hidden_ancestors=False,
        reason="so",
    )
    monkeypatch.setattr(decision, "find_budget", lambda **_: found)
    result = warm(cold, budget=text, dry_run=True)
    assert result.budget_bytes == budget
    assert bool(result.budget_reason) == (budget is not None)


@pytest.mark.parametrize("options", [{"budget": "8G"}, {"budget": "120%"}, {"budget": "some"}, {"jobs": 0},
                                     {"order": "size"}])  # fmt: skip
def test_options_that_make_no_sense_are_refused(cold: list[Path], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        warm(cold, **options)


def test_all_or_nothing_reads_nothing_when_not_all_fits(cold: list[Path]) -> None:
    with pytest.raises(RefusedError, match=r"would have to be read, and the budget is 8\.0 MiB") as caught:
        warm(cold, budget="8MiB", all_or_nothing=True)
    assert caught.value.exit_code == 3
    assert sum(fincore_bytes(path) for path in cold) < 2 * MIB
    assert warm(cold, budget="20MiB", all_or_nothing=True).complete


def test_jobs_cap_the_streams(cold: list[Path]) -> None:
    assert warm(cold, jobs=1).streams == 1


def test_one_file_alone_can_be_warmed(cold: list[Path]) -> None:
    result = prewarm(PrewarmOptions(str(cold[0])))
    assert result.bytes == cold[0].stat().st_size
    assert fincore_bytes(cold[0]) == whole_pages(cold[0])
    assert fincore_bytes(cold[1]) < 2 * MIB


def test_the_files_are_not_changed(cold: list[Path]) -> None:
    before = [path.stat().st_mtime_ns for path in cold]
    warm(cold)
    assert [path.stat().st_mtime_ns for path in cold] == before


class Interfering(Events):
    def __init__(self, interfere: Any) -> None:
        self._interfere = interfere

    def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
        self._interfere()


def test_a_file_that_was_replaced_meanwhile_is_an_error(cold: list[Path]) -> None:
    def replace() -> None:
        write_shard(cold[1], {"model.embed.weight": made("U8", 10)})

    with pytest.raises(ChangedError):
        warm(cold, Interfering(replace))


def test_progress_counts_what_is_read(cold: list[Path]) -> None:
    class Counting(Events):
        begun = advanced = 0

        def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
            self.begun = total_bytes

        def advance(self, nbytes: int) -> None:
            self.advanced += nbytes

    events = Counting()
    result = warm(cold, events, jobs=1)
    assert events.begun == events.advanced == result.read_bytes


def test_warming_stops_between_windows(cold: list[Path]) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    with pytest.raises(StoppedError):
        warm(cold, Stopping())


def test_a_header_of_many_pages_is_warmed_too(disk: Path) -> None:
    folder = disk / "wide"
    write_shard(folder / "model.safetensors", {f"{'n' * 200}.{n}": made("U8", 1) for n in range(3000)})
    path = folder / "model.safetensors"
    assert header_of(path)[0] > 100 * PAGE
    run("sync", str(path))
    drop(path)
    assert warm([path]).complete
    assert fincore_bytes(path) == whole_pages(path)


def test_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        prewarm(PrewarmOptions(str(tmp_path / "nowhere")))
