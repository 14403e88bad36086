"""Every call to the kernel that repack makes fails once, one after the other: the target is whole or as before.

Nothing here is a mock: the real calls run, and the Nth of a kind fails as the kernel lets it fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import ColdctlError, EnvironmentLacksError, NoSpaceError, UnreadableError
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.loader import syscalls
from tests.tiny import contents, made, snapshot, write_sharded

CALLS = [
    (os, "pwrite"),
    (os, "preadv"),
    (os, "pread"),
    (os, "open"),
    (os, "fsync"),
    (os, "rename"),
    (os, "mkdir"),
    (os, "lstat"),
    (os, "ftruncate"),
    (os, "statvfs"),
    (os, "listdir"),
    (os, "fstat"),
    (syscalls, "fallocate"),
    (syscalls, "sync_file_range"),
    (syscalls, "fiemap"),
    (syscalls, "rename_no_replace"),
]
ERRORS = {errno.ENOSPC: NoSpaceError, errno.EIO: UnreadableError, errno.EACCES: EnvironmentLacksError}
MOST_CALLS = 400


class Failing:
    """Stands before a call and fails the `number`th time. `happened` says whether it came to that."""

    def __init__(self, real: Callable[..., Any], number: int, code: int) -> None:
        self.happened = False
        self._real, self._left, self._code = real, number, code
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            self._left -= 1
            fails = self._left == 0
            self.happened = self.happened or fails
        if fails:
            raise OSError(self._code, os.strerror(self._code))
        return self._real(*arguments, **options)


@contextmanager
def failing(module: Any, name: str, number: int, code: int) -> Iterator[Failing]:
    fault = Failing(getattr(module, name), number, code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fault)
        yield fault


def attempt(options: RepackOptions, module: Any, name: str, number: int, code: int) -> tuple[Failing, Exception | None]:
    """One repack with one failing call, and what came of it."""
    with failing(module, name, number, code) as fault:
        try:
            repack(options)
        except ColdctlError as error:
            return fault, error
        return fault, None


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write_sharded(folder, [{"a": made("U8", 5000), "b": made("U8", 8192)}, {"c": made("U8", 3), "d": made("F32", 0)}])
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "vocab.txt").write_text("x")
    return folder


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize(("module", "name"), CALLS, ids=[name for _, name in CALLS])
def test_a_new_target_is_whole_or_not_there(source: Path, tmp_path: Path, module: Any, name: str, code: int) -> None:
    repack(RepackOptions(str(source), str(tmp_path / "whole"), align="every"))
    whole, before = contents(tmp_path / "whole"), snapshot(source)
    descriptors = set(os.listdir("/proc/self/fd"))
    parent = tmp_path / "new"
    target = parent / "target"
    for number in range(1, MOST_CALLS):
        fault, error = attempt(RepackOptions(str(source), str(target), align="every"), module, name, number, code)
        if error is None:
            assert contents(target) == whole
            if not fault.happened:
                break
            for path in sorted(parent.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            parent.rmdir()
        else:
            assert isinstance(error, (*ERRORS.values(), ColdctlError))
            assert not parent.exists(), f"call {number}: {error}"
            check_class(error, name, code)
    else:
        raise AssertionError(f"{name} was called {MOST_CALLS} times and more")
    assert snapshot(source) == before
    assert set(os.listdir("/proc/self/fd")) == descriptors


def check_class(error: Exception, name: str, code: int) -> None:
    """The error says what failed: what the storage does not give is unreadable, whatever it gives as a reason."""
    if name == "preadv":
        assert isinstance(error, UnreadableError)
    elif name != "lstat":  # a failed look passes for a free name, and it is the next call that complains
        assert isinstance(error, ERRORS[code])


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("module", "name"), [*CALLS, (os, "unlink")], ids=[name for _, name in [*CALLS, (os, "unlink")]]
)
def test_under_force_all_is_new_or_all_is_old(source: Path, tmp_path: Path, module: Any, name: str, code: int) -> None:
    old_source = tmp_path / "old"
    write_sharded(old_source, [{"a": made("U8", 5000, seed=9)}, {"old": made("U8", 9)}, {"older": made("U8", 7)}])
    (old_source / "config.json").write_text('{"old": true}')
    repack(RepackOptions(str(source), str(tmp_path / "whole")))
    repack(RepackOptions(str(old_source), str(tmp_path / "old-target")))
    new, old = contents(tmp_path / "whole"), contents(tmp_path / "old-target")
    for number in range(1, MOST_CALLS):
        target = tmp_path / f"target-{number}"
        shutil.copytree(tmp_path / "old-target", target)
        (target / "notes.txt").write_text("mine")
        fault, error = attempt(RepackOptions(str(source), str(target), force=True), module, name, number, code)
        found = contents(target)
        if error is None:
            # What cannot be removed any more is no failure: the next run sweeps it.
            found = {path: data for path, data in found.items() if not path.startswith(".coldctl-")}
        assert found == (new if error is None else old) | {"notes.txt": b"mine"}, f"call {number}: {error}"
        if not fault.happened:
            break
        shutil.rmtree(target)
    else:
        raise AssertionError(f"{name} was called {MOST_CALLS} times and more")


@pytest.mark.parametrize("name", ["preadv", "pread", "open"])
def test_verify_never_calls_clean_what_it_could_not_read(source: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    repack(RepackOptions(str(source), str(target), align="every"))
    for number in range(1, MOST_CALLS):
        with failing(os, name, number, errno.EIO) as fault:
            try:
                result = verify(VerifyOptions(str(target)))
            except UnreadableError:
                continue
        assert result.errors == []
        if not fault.happened:
            assert (result.unjudged, result.digests_checked) == ([], result.tensors)
            break
        assert result.unjudged or result.digests_checked == result.tensors == 4
