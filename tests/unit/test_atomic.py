"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import EnvironmentLacksError, InputError, RefusedError
from coldctl.loader import atomic
from coldctl.loader.atomic import Staging
from tests.tiny import contents


def test_nothing_has_a_final_name_before_the_commit(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with Staging(str(target)) as staging:
        staging.put("a.safetensors", b"a")
        staging.put("sub/b.json", b"b")
        assert all(path.name.startswith(".coldctl-") and path.name.endswith(".tmp") for path in target.iterdir())
        assert Path(staging.path("a.safetensors")).read_bytes() == b"a"
        staging.commit(["a.safetensors", "sub/b.json"], remove=[])
        assert contents(target) == {"a.safetensors": b"a", "sub/b.json": b"b"}
    assert contents(target) == {"a.safetensors": b"a", "sub/b.json": b"b"}


def test_names_appear_in_the_order_given_after_everything_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        calls.append("sync " + ("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"))
        real_fsync(fd)

    def replace(old: str, new: str) -> None:
        calls.append(os.path.relpath(new, tmp_path))
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with Staging(str(tmp_path)) as staging:
        for name in ("index", "shard", "sub/config"):
            staging.put(name, b"")
        staging.commit(["sub/config", "shard", "index"], remove=[])
    assert calls == ["sync file"] * 3 + ["sub/config", "shard", "index"] + ["sync folder"] * 2


def test_without_a_commit_nothing_is_left_not_even_the_folders(tmp_path: Path) -> None:
    with Staging(str(tmp_path / "new" / "deep" / "target")) as staging:
        staging.put("a", b"a")
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_nothing_and_comes_out(tmp_path: Path) -> None:
    def fail_after_a_file() -> None:
        with Staging(str(tmp_path / "new" / "target")) as staging:
            os.close(staging.create("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_file()
    assert list(tmp_path.iterdir()) == []


def test_folders_and_files_that_were_there_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    with Staging(str(tmp_path)) as staging:
        staging.put("a", b"a")
    assert contents(tmp_path) == {"mine": b"mine"}


def test_a_commit_replaces_and_removes(tmp_path: Path) -> None:
    for name in ("old-shard", "index", "config"):
        (tmp_path / name).write_bytes(b"old")
    with Staging(str(tmp_path)) as staging:
        staging.put("index", b"new")
        staging.put("new-shard", b"new")
        staging.commit(["new-shard", "index"], remove=["old-shard", "index", "never there"])
    assert contents(tmp_path) == {"config": b"old", "index": b"new", "new-shard": b"new"}


def commit(target: Path, *names: str) -> None:
    """Write files of the content `new`."""
    with Staging(str(target)) as staging:
        for name in names:
            staging.put(name, b"new")
        staging.commit(list(names), remove=[])


def fail_at(monkeypatch: pytest.MonkeyPatch, function: str, number: int) -> None:
    """Make the call `number` of os.FUNCTION fail."""
    real: Any = getattr(os, function)
    calls = 0

    def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments, **options)

    monkeypatch.setattr(os, function, fail)


@pytest.mark.parametrize(("function", "number"), [("replace", 1), ("replace", 2), ("replace", 3), ("fsync", 4)])
def test_a_commit_that_fails_takes_all_names_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    target = tmp_path / "new" / "target"
    fail_at(monkeypatch, function, number)
    with pytest.raises(OSError, match="Input/output"):
        commit(target, "a", "sub/b", "c")
    assert list(tmp_path.iterdir()) == []


def test_a_commit_over_old_files_that_fails_leaves_each_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"old")
    fail_at(monkeypatch, "replace", 2)
    with pytest.raises(OSError, match="Input/output"):
        commit(tmp_path, "a", "b")
    assert contents(tmp_path) == {"a": b"new", "b": b"old"}


def test_a_folder_that_cannot_be_made_leaves_none_of_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, "mkdir", 3)
    with pytest.raises(Exception, match="Input/output error"), Staging(str(tmp_path / "a" / "b" / "c")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".coldctl-4711-0.tmp").write_bytes(b"left")
    (tmp_path / ".coldctl-notes").write_bytes(b"kept")
    (tmp_path / "coldctl.tmp").write_bytes(b"kept")
    with Staging(str(tmp_path)):
        assert sorted(os.listdir(tmp_path)) == [".coldctl-notes", "coldctl.tmp"]


def test_a_folder_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    with Staging(str(tmp_path)) as first:
        first.put("a", b"a")
        with pytest.raises(RefusedError, match="another coldctl is writing to"), Staging(str(tmp_path)):
            pass
        assert Path(first.path("a")).exists()
        first.commit(["a"], remove=[])
    with Staging(str(tmp_path)):
        pass
    assert contents(tmp_path) == {"a": b"a"}


def test_a_filesystem_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Staging(str(tmp_path)) as staging:
        staging.put("a", b"a")
        staging.commit(["a"], remove=[])
    assert contents(tmp_path) == {"a": b"a"}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Staging(str(tmp_path / "target")) as staging:
            staging.put("a", b"a")
            staging.commit(["a"], remove=[])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "target" / "a").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o777 & ~umask


def test_a_target_that_is_a_file_or_a_dead_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "file/below", "link"):
        with pytest.raises(InputError, match="cannot write to"), Staging(str(tmp_path / name)):
            pass
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_linked_folder_does_not_lead_writes_out_of_the_target(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_bytes(b"not ours")
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub").symlink_to(elsewhere)
    with pytest.raises(RefusedError, match=r"sub in .* is a link to"), Staging(str(target)) as staging:
        staging.put("sub/config.json", b"new")
    assert contents(elsewhere) == {"config.json": b"not ours"}


def test_a_linked_target_and_a_linked_old_file_are_fine(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    (real / "a").symlink_to(tmp_path / "precious")
    (tmp_path / "target").symlink_to(real)
    with Staging(str(tmp_path / "target")) as staging:
        staging.put("a", b"new")
        staging.commit(["a"], remove=[])
    assert contents(real) == {"a": b"new"}
    assert not (real / "a").is_symlink()
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_folder_that_may_not_be_made_is_the_environments_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(EnvironmentLacksError, match="Read-only file system"), Staging(str(tmp_path / "new")):
        pass


def test_a_forced_exit_removes_what_every_staging_has_made(tmp_path: Path) -> None:
    with Staging(str(tmp_path / "one")) as one, Staging(str(tmp_path / "two")) as two:
        one.put("a", b"a")
        two.put("a", b"a")
        atomic.remove_temporaries()
        assert contents(tmp_path) == {}


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with Staging(str(tmp_path / "target")) as staging:
        staging.put("a", b"a")
        staging.commit(["a"], remove=[])
    with pytest.raises(InputError), Staging(str(tmp_path / "target" / "a")):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
