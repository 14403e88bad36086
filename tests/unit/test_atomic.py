"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import EnvironmentLacksError, InputError, RefusedError, StoppedError, UnreadableError
from coldctl.events import NULL, Events
from coldctl.loader import atomic, syscalls
from coldctl.loader.atomic import Staging
from tests.cli.process import run_python
from tests.tiny import contents, snapshot


def test_nothing_has_a_final_name_before_the_commit(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with Staging(str(target)) as staging:
        staging.put("a.safetensors", b"a")
        staging.put("sub/b.json", b"b")
        assert [path.name for path in target.iterdir()] == [f".coldctl-{os.getpid()}.tmp"]
        assert Path(staging.path("a.safetensors")).read_bytes() == b"a"
        staging.commit(["a.safetensors", "sub/b.json"], replace=[])
        assert contents(target) == {"a.safetensors": b"a", "sub/b.json": b"b"}
    assert contents(target) == {"a.safetensors": b"a", "sub/b.json": b"b"}


def recorded(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """What is synced and renamed from now on: kinds of what is synced, and old and new names below `root`."""
    calls: list[str] = []
    real_fsync, real_rename, real_give = os.fsync, os.rename, syscalls.rename_no_replace

    def fsync(fd: int) -> None:
        calls.append("sync " + ("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"))
        real_fsync(fd)

    def rename(old: str, new: str) -> None:
        calls.append(f"away {os.path.relpath(old, root)}")
        real_rename(old, new)

    def give(old: str, new: str) -> None:
        calls.append(os.path.relpath(new, root))
        real_give(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(syscalls, "rename_no_replace", give)
    return calls


def test_names_appear_in_the_order_given_after_everything_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old index", "shard"):
        (tmp_path / name).write_bytes(b"old")
    with Staging(str(tmp_path)) as staging:
        for name in ("index", "shard", "sub/config"):
            staging.put(name, b"")
        calls = recorded(monkeypatch, tmp_path)
        staging.commit(["sub/config", "shard", "index"], replace=["old index", "shard"])
    private = f".coldctl-{os.getpid()}.tmp"
    assert calls == [
        *["sync file"] * 3,
        *["sync file", f"away {private}/commit.part", "sync folder", "sync folder"],
        *["away old index", "away shard"],
        *["sub/config", "shard", "index"],
        *["sync folder"] * 3,
    ]


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
        staging.commit(["new-shard", "index"], replace=["old-shard", "index", "never there"])
    assert contents(tmp_path) == {"config": b"old", "index": b"new", "new-shard": b"new"}


def commit(target: Path, *names: str, replace: Sequence[str] = (), events: Events = NULL) -> None:
    """Write files of the content `new`."""
    with Staging(str(target)) as staging:
        for name in names:
            staging.put(name, b"new")
        staging.commit(list(names), replace=replace, events=events)


def fail_at(monkeypatch: pytest.MonkeyPatch, function: str, number: int, module: Any = os) -> None:
    """Make the call `number` of MODULE.FUNCTION fail."""
    real: Any = getattr(module, function)
    calls = 0

    def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments, **options)

    monkeypatch.setattr(module, function, fail)


FAILURES = [(syscalls, "rename_no_replace", 1), (syscalls, "rename_no_replace", 2), (syscalls, "rename_no_replace", 3),
            (os, "rename", 1), (os, "fsync", 4), (os, "fsync", 7), (os, "unlink", 1)]  # fmt: skip


@pytest.mark.parametrize(("module", "function", "number"), FAILURES)
def test_a_commit_that_fails_takes_all_names_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, number: int
) -> None:
    target = tmp_path / "new" / "target"
    fail_at(monkeypatch, function, number, module)
    with pytest.raises((OSError, UnreadableError), match="Input/output"):
        commit(target, "a", "sub/b", "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "function", "number"), [*FAILURES, (os, "rename", 2), (os, "rename", 3)])
def test_a_commit_over_old_files_that_fails_brings_all_of_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, number: int
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"old")
    (tmp_path / "old only").symlink_to("a")
    before = snapshot(tmp_path)
    fail_at(monkeypatch, function, number, module)
    with pytest.raises((OSError, UnreadableError), match="Input/output"):
        commit(tmp_path, "sub/c", "a", "b", replace=["b", "a", "old only"])
    assert snapshot(tmp_path) == before


def test_an_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_bytes(b"old")
    with monkeypatch.context() as patch:
        fail_at(patch, "rename", 2)
        with pytest.raises(UnreadableError, match=f"cannot replace {tmp_path}/b: Input/output error"):
            commit(tmp_path, "a", "b", replace=["b"])
    fail_at(monkeypatch, "rename_no_replace", 2, syscalls)
    with pytest.raises(UnreadableError, match=f"cannot write {tmp_path}/b: Input/output error"):
        commit(tmp_path, "a", "b", replace=["b"])


class Stopping(Events):
    """Asked to stop at the call of that number; then something else happens."""

    def __init__(self, number: int, then: Callable[[], object] = lambda: None) -> None:
        self.left, self.then = number, then

    def raise_if_stopped(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.then()
            raise StoppedError(15)


def test_a_stop_anywhere_in_a_commit_brings_the_old_state_back(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"old")
    before = snapshot(tmp_path)
    for number in range(1, 100):
        events = Stopping(number)
        try:
            commit(tmp_path, "a", "b", "sub/c", replace=["a", "b"], events=events)
        except StoppedError:
            assert snapshot(tmp_path) == before
        else:
            break
    # Three files to sync, two old and three new names, two folders to sync, and once before there is no way back.
    assert number == 3 + 2 + 3 + 2 + 1 + 1
    assert contents(tmp_path) == dict.fromkeys(("a", "b", "sub/c"), b"new")


def test_what_cannot_be_put_back_is_named_kept_and_put_back_by_the_next_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"old")
    # By the time of the stop both are aside, and somebody puts another file in the place of one.
    events = Stopping(5, lambda: (tmp_path / "b").write_bytes(b"somebody's"))
    with pytest.raises(EnvironmentLacksError, match="stopped by SIGTERM; and what was done to a, b in") as caught:
        commit(tmp_path, "a", "b", replace=["a", "b"], events=events)
    assert "/old: the next repack" in str(caught.value.hint)
    private = next(tmp_path.glob(".coldctl-*.tmp"))
    assert contents(private / "old") == {"a": b"old", "b": b"old"}
    assert (tmp_path / "b").read_bytes() == b"somebody's"
    with pytest.raises(RefusedError, match=r"what a killed run did to a, b in .* cannot be undone"):
        commit(tmp_path, "c")
    (tmp_path / "b").unlink()
    commit(tmp_path, "c")
    assert contents(tmp_path) == {"a": b"old", "b": b"old", "c": b"new"}


KILLED = """
import os, sys
from coldctl.events import Events
from coldctl.loader.atomic import Staging
class Kill(Events):
    left = int(sys.argv[2])
    def raise_if_stopped(self):
        Kill.left -= 1
        if Kill.left == 0:
            os.kill(os.getpid(), 9)
real = os.unlink
def unlink(path, **options):
    real(path, **options)
    if path.endswith("commit.json") and sys.argv[2] == "0":
        os.kill(os.getpid(), 9)
os.unlink = unlink
with Staging(sys.argv[1]) as staging:
    for name in ("sub/c", "a", "caf\\udce9", "b"):
        staging.put(name, b"new")
    staging.commit(["sub/c", "a", "caf\\udce9", "b"], replace=["b", "a", "link"], events=Kill())
"""


@pytest.mark.parametrize("number", range(15))
def test_after_a_kill_the_next_run_brings_the_old_state_back(tmp_path: Path, number: int) -> None:
    """Number 0 is after the point of no return: there the next run only clears away what was set aside."""
    target = tmp_path / "target"
    target.mkdir()
    for name in ("a", "b"):
        (target / name).write_bytes(b"old")
    (target / "link").symlink_to("a")
    before = snapshot(target)
    ended = run_python("-c", KILLED, str(target), str(number))
    assert ended.returncode == -9
    assert list(target.glob(".coldctl-*.tmp"))
    with Staging(str(target)) as staging:
        assert staging.unswept == []
    if number:
        assert snapshot(target) == before
    else:
        assert contents(target) == dict.fromkeys(("a", "b", "sub/c", os.fsdecode(b"caf\xe9")), b"new")


def test_after_a_kill_a_file_that_somebody_put_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    assert run_python("-c", KILLED, str(tmp_path), "12").returncode == -9
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"new"
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_bytes(b"theirs")
    with Staging(str(tmp_path)):
        pass
    assert contents(tmp_path) == {"a": b"old", "b": b"theirs"}


@pytest.mark.parametrize(
    "journal", ["", "{}", "[1, 2, 3]", '[[], ["../victim"], []]', '[[["a", [1]]], ["/etc/x"], []]']
)
def test_a_journal_that_is_not_ours_is_not_acted_on(tmp_path: Path, journal: str) -> None:
    target = tmp_path / "target"
    private = target / ".coldctl-7.tmp"
    (private / "old").mkdir(parents=True)
    (private / "victim").write_text("x")
    (private / "commit.json").write_text(journal)
    before = snapshot(tmp_path)
    with Staging(str(target)) as staging:
        assert staging.unswept == [".coldctl-7.tmp"]
    assert snapshot(tmp_path) == before


def test_a_file_that_appeared_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with Staging(str(tmp_path)) as staging:
        for name in ("a", "b"):
            staging.put(name, b"new")
        (tmp_path / "b").write_bytes(b"theirs")
        with pytest.raises(RefusedError, match=r"b appeared in .* meanwhile"):
            staging.commit(["a", "b"], replace=["a"])
    assert contents(tmp_path) == {"a": b"old", "b": b"theirs"}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_the_same_where_the_filesystem_has_no_such_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, links: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(syscalls, "rename_no_replace", refuse)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "a").symlink_to("nowhere")
    (tmp_path / "taken").write_bytes(b"theirs")
    before = snapshot(tmp_path)
    with pytest.raises(RefusedError, match="taken appeared"):
        commit(tmp_path, "a", "taken", replace=["a"])
    assert snapshot(tmp_path) == before
    commit(tmp_path, "a", "b", replace=["a"])
    assert contents(tmp_path) == {"a": b"new", "b": b"new", "taken": b"theirs"}


def test_many_files_are_synced_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, tmp_path)
    names = [f"{n}" for n in range(500)]
    commit(tmp_path, *names)
    assert contents(tmp_path) == dict.fromkeys(names, b"new")
    assert len([call for call in calls if call.startswith("sync")]) < 10


def test_a_sync_that_hangs_does_not_hold_up_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(_: int) -> None:
        release.wait()

    monkeypatch.setattr(syscalls, "syncfs", hang)
    try:
        with pytest.raises(StoppedError):
            commit(tmp_path, *(f"{n}" for n in range(500)), events=Stopping(3))
        assert contents(tmp_path) == {}
    finally:
        release.set()


def test_a_failed_sync_of_many_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "syncfs", 1, syscalls)
    with pytest.raises(OSError, match="Input/output"):
        commit(tmp_path, *(f"{n}" for n in range(500)))
    assert contents(tmp_path) == {}


def test_nothing_can_be_made_or_renamed_once_all_was_taken_back(tmp_path: Path) -> None:
    """The main thread may still be running while another one clears up for a forced exit."""
    with Staging(str(tmp_path)) as staging:
        staging.put("a", b"a")
        atomic.remove_temporaries()
        with pytest.raises(RefusedError, match="taken back"):
            staging.create("b")
        with pytest.raises((RefusedError, FileNotFoundError)):
            staging.commit(["a"], replace=[])
        assert list(tmp_path.iterdir()) == []


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


def test_what_only_looks_like_a_temporary_stays_is_named_and_is_not_in_the_way(tmp_path: Path) -> None:
    name = f".coldctl-{os.getpid()}.tmp"
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").write_bytes(b"mine")
    (tmp_path / ".coldctl-1-2.tmp").symlink_to(name)
    with Staging(str(tmp_path)) as staging:
        assert staging.unswept == [".coldctl-1-2.tmp", name]
        staging.put("a", b"a")
        staging.commit(["a"], replace=[])
    assert contents(tmp_path) == {"a": b"a", f"{name}/mine": b"mine"}
    assert (tmp_path / ".coldctl-1-2.tmp").is_symlink()


def test_a_folder_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    with Staging(str(tmp_path)) as first:
        first.put("a", b"a")
        with pytest.raises(RefusedError, match="another coldctl is writing to"), Staging(str(tmp_path)):
            pass
        assert Path(first.path("a")).exists()
        first.commit(["a"], replace=[])
    with Staging(str(tmp_path)):
        pass
    assert contents(tmp_path) == {"a": b"a"}


def test_a_filesystem_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Staging(str(tmp_path)) as staging:
        staging.put("a", b"a")
        staging.commit(["a"], replace=[])
    assert contents(tmp_path) == {"a": b"a"}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Staging(str(tmp_path / "target")) as staging:
            staging.put("a", b"a")
            staging.commit(["a"], replace=[])
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
        staging.commit(["a"], replace=["a"])
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
        staging.commit(["a"], replace=[])
    with pytest.raises(InputError), Staging(str(tmp_path / "target" / "a")):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
