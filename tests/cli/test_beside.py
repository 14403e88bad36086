"""Files written beside a result: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coldctl.cli.beside import FileBeside
from coldctl.errors import EnvironmentLacksError, InputError, NoSpaceError, UsageError
from tests.filesystems import as_nobody, tmpfs

MARK = b"<!doctype html>"


def test_it_appears_whole_when_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    file = FileBeside(str(target), MARK)
    assert os.listdir(tmp_path) == []
    file.write("<!doctype html>\nGrüße")
    assert target.read_text(encoding="utf-8") == "<!doctype html>\nGrüße"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    for link, target in (("link", "page.html"), ("dangling", "new.html")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "page.html").write_bytes(MARK)
    for link, target in (("link", "page.html"), ("dangling", "new.html")):
        FileBeside(str(tmp_path / link), MARK).write(link)
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / target).read_text() == link


def test_what_stdout_leads_to_is_no_file_of_its_own(tmp_path: Path) -> None:
    """`--report /dev/stdout > FILE` would replace the file that the result goes to, or the link itself."""
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    script = f"from coldctl.cli.beside import FileBeside; FileBeside({str(link)!r}, b'x')"
    with open(tmp_path / "out", "w+b") as out:
        for stdout in (out, subprocess.PIPE):
            done = subprocess.run([sys.executable, "-c", script], stdout=stdout, stderr=subprocess.PIPE, timeout=60)
            assert b"UsageError" in done.stderr
            assert b"stdout is no file of its own" in done.stderr
    assert link.is_symlink()


def test_it_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    before = os.umask(0o027)
    try:
        FileBeside(str(target), MARK).write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("content", [b"", b"\n<!doctype html><p>an older page"])
def test_an_empty_file_and_one_of_its_kind_are_replaced(tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "page.html"
    target.write_bytes(content)
    FileBeside(str(target), MARK).write("new")
    assert target.read_text() == "new"


def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(UsageError, match=r"model\.safetensors is there, and not of the kind"):
        FileBeside(str(target), MARK)
    assert target.read_bytes() == b"\x08\0\0\0\0\0\0\0{}      "
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_folder_and_a_device_are_no_files(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/dev/null"):
        with pytest.raises(UsageError, match="is no file of its own"):
            FileBeside(path, MARK)


def test_a_folder_that_is_not_there_is_found_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*none/page.html: No such file"):
        FileBeside(str(tmp_path / "none/page.html"), MARK)


def test_one_file_for_two_kinds_is_found_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "z").symlink_to("x")
    for one, other in (("x", str(tmp_path / "x")), ("folder/x", "link/x"), ("folder/../x", "./x"), ("x", "z")):
        with pytest.raises(UsageError, match="are one file"):
            FileBeside(one, MARK).require_other_than(FileBeside(other, b"trace"))
    for other in ("folder/x", "y"):
        FileBeside("x", MARK).require_other_than(FileBeside(other, b"trace"))


def test_a_folder_that_is_gone_by_the_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    file = FileBeside(str(folder / "page.html"), MARK)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=r"cannot write .*page\.html: No such file"):
        file.write("x")


@pytest.mark.root
@pytest.mark.parametrize("length", [1, 100_000])  # one byte stays in a buffer until the file is closed
def test_a_full_disk_is_told_and_nothing_is_left_on_it(length: int) -> None:
    with tmpfs(8192) as disk:
        (disk / "other").write_bytes(b"x" * 8192)
        with pytest.raises(NoSpaceError, match=r"page\.html: No space"):
            FileBeside(str(disk / "page.html"), MARK).write("x" * length)
        assert os.listdir(disk) == ["other"]


def refused_in_usr() -> str:
    try:
        FileBeside("/usr/page.html", MARK)
    except EnvironmentLacksError as error:
        return error.message
    return "not refused"


@pytest.mark.root
def test_a_folder_that_may_not_be_written_is_found_before_the_work() -> None:
    assert as_nobody(refused_in_usr) == "cannot write /usr/page.html: Permission denied"


def test_a_name_without_a_folder_is_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FileBeside("page.html", MARK).write("x")
    assert (tmp_path / "page.html").read_text() == "x"
