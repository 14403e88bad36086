"""Real full filesystems: the right error, and all of the space given back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import NoSpaceError
from coldctl.jobs.fp8 import Fp8Options, convert_fp8
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader import syscalls
from tests.cli.process import run_python
from tests.filesystems import loop_filesystem, tmpfs
from tests.fp8 import some_rows, tensor, write_model
from tests.tiny import contents, made, write_shard, write_sharded

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two shards of 3 MiB and a little more."""
    folder = tmp_path / "source"
    write_sharded(folder, [{"a": made("U8", 3 * MIB)}, {"b": made("U8", 3 * MIB)}])
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Path]]:
    """Makes a filesystem of about so many bytes."""
    opened = []

    def make(size_bytes: int) -> Path:
        if request.param == "tmpfs":
            context: Any = tmpfs(size_bytes)
            opened.append(context)
            return Path(context.__enter__())
        context = loop_filesystem("ext4", size_bytes, "-O", "^has_journal", "-m", "0")
        opened.append(context)
        return Path(context.__enter__().path)

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def refuse(source: Path, disk: Path, **options: Any) -> NoSpaceError:
    before, names = free_bytes(disk), sorted(contents(disk))
    with pytest.raises(NoSpaceError) as caught:
        repack(RepackOptions(str(source), str(disk / "target"), **options))
    assert caught.value.exit_code == 6
    assert free_bytes(disk) == before
    assert sorted(contents(disk)) == names
    assert not (disk / "target").exists()
    return caught.value


def believe_in_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the space went between the look and the first write."""
    plenty = list(os.statvfs("/"))
    plenty[4] = 1 << 40
    monkeypatch.setattr("coldctl.jobs.repack.target.os.statvfs", lambda _: os.statvfs_result(plenty))


def test_too_little_room_is_seen_before_anything_is_written(source: Path, small: Callable[[int], Path]) -> None:
    error = refuse(source, small(5 * MIB))
    assert "free, and the new checkpoint needs 6.0 MiB" in error.message


def test_a_second_shard_that_does_not_fit_takes_the_first_away(
    source: Path, small: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small(5 * MIB)
    free = free_bytes(disk)
    with monkeypatch.context() as patch:
        believe_in_space(patch)
        with pytest.raises(NoSpaceError, match=r"cannot allocate \d+ bytes for model-00002-of-00002\.safetensors"):
            repack(RepackOptions(str(source), str(disk / "target")))
    assert not (disk / "target").exists()
    assert free_bytes(disk) == free


def test_writes_that_fail_where_nothing_could_be_allocated(
    source: Path, small: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fallocate(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    disk = small(5 * MIB)
    free = free_bytes(disk)
    with monkeypatch.context() as patch:
        believe_in_space(patch)
        patch.setattr(syscalls, "fallocate", fallocate)
        with pytest.raises(NoSpaceError, match=r"cannot write model-00002-of-00002\.safetensors: No space left"):
            repack(RepackOptions(str(source), str(disk / "target")))
    assert not (disk / "target").exists()
    assert free_bytes(disk) == free


@pytest.mark.parametrize("what", ["sidecar", "manifest"])
def test_the_small_files_may_be_what_does_not_fit(
    tmp_path: Path, small: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = tmp_path / "source"
    tensors = {"a": made("U8", 3 * MIB)} | {f"{'n' * 100}.{n}": made("U8", 1) for n in range(2000)}
    write_shard(folder / "model.safetensors", tensors)
    if what == "sidecar":
        (folder / "tokenizer.json").write_bytes(b"x" * 2 * MIB)
    disk = small(6 * MIB)
    with (disk / "hog").open("wb") as file:
        # The shard has 3 MiB, 2 KiB and a header of some 400 KiB; the manifest about as much, and digests.
        file.write(bytes(free_bytes(disk) - 3 * MIB - 600 * 1024))
    free = free_bytes(disk)
    with monkeypatch.context() as patch:
        believe_in_space(patch)
        with pytest.raises(NoSpaceError, match="No space left on device"):
            repack(RepackOptions(str(folder), str(disk / "target")))
    assert sorted(contents(disk)) == ["hog"]
    assert not (disk / "target").exists()
    assert free_bytes(disk) == free


def test_another_program_may_take_the_space_meanwhile(
    source: Path, small: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small(9 * MIB)
    real = os.statvfs

    def look_and_lose(path: str) -> os.statvfs_result:
        found = real(path)
        with (disk / "hog").open("wb") as file:
            file.write(bytes(free_bytes(disk) - 4 * MIB))
        return found

    with monkeypatch.context() as patch:
        patch.setattr("coldctl.jobs.repack.target.os", _Os(look_and_lose))
        with pytest.raises(NoSpaceError):
            repack(RepackOptions(str(source), str(disk / "target")))
    assert sorted(contents(disk)) == ["hog"]


class _Os:
    """The os module as one module sees it, with another statvfs."""

    def __init__(self, statvfs: Callable[[str], os.statvfs_result]) -> None:
        self.statvfs = statvfs

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_filesystem_without_inodes_is_full_too(source: Path) -> None:
    for number in range(20):
        (source / f"extra-{number}.txt").write_text("x")
    with loop_filesystem("ext4", 64 * MIB, "-N", "24") as filesystem:
        refuse(source, filesystem.path)


def test_the_old_checkpoint_survives_when_the_new_one_does_not_fit(source: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    write_shard(old / "model.safetensors", {"old": made("U8", 2 * MIB)})
    with tmpfs(6 * MIB) as disk:
        repack(RepackOptions(str(old), str(disk / "target")))
        before = contents(disk)
        with pytest.raises(NoSpaceError):
            repack(RepackOptions(str(source), str(disk / "target"), force=True))
        assert contents(disk) == before


def test_the_command_line_says_so_in_one_line_with_exit_code_6(source: Path) -> None:
    with tmpfs(5 * MIB) as disk:
        ended = run_python("-m", "coldctl", "repack", str(source), str(disk / "target"))
        assert ended.returncode == 6
        assert ended.stdout == ""
        assert "Traceback" not in ended.stderr
        assert "5.0 MiB free, and the new checkpoint needs 6.0 MiB" in ended.stderr
        assert contents(disk) == {}


def test_fp8_gives_all_of_the_space_back_when_a_shard_does_not_fit(
    tmp_path: Path, small: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3 MiB of FP8 each, and room for one.
    rows = tensor(some_rows(3 * 1024, 1024))
    source = write_model(tmp_path / "model", rows, rows)
    disk = small(5 * MIB)
    free = free_bytes(disk)
    with pytest.raises(NoSpaceError, match=r"free, and the new checkpoint needs 6\.0 MiB"):
        convert_fp8(Fp8Options(str(source), str(disk / "target")))
    with monkeypatch.context() as patch:
        believe_in_space(patch)
        with pytest.raises(NoSpaceError, match=r"cannot allocate \d+ bytes for model-00002-of-00002\.safetensors"):
            convert_fp8(Fp8Options(str(source), str(disk / "target")))
    assert not (disk / "target").exists()
    assert free_bytes(disk) == free
