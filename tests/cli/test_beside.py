"""Files written beside a result: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from coldctl.cli.beside import FileBeside
from coldctl.errors import EnvironmentLacksError, InputError, NoSpaceError, UsageError
from tests.filesystems import as_nobody, tmpfs

MARK = b"<!doctype html>"


def test_it_appears_whole_when_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with FileBeside(str(target), MARK) as file:
        assert not target.exists()
        file.write("<!doctype html>\nGrüße")
        assert target.read_text(encoding="utf-8") == "<!doctype html>\nGrüße"
    assert os.listdir(tmp_path) == ["page.html"]


def test_nothing_is_left_when_the_work_fails(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with pytest.raises(ZeroDivisionError), FileBeside(str(target), MARK):
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path) == []


def test_it_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    before = os.umask(0o027)
    try:
        with FileBeside(str(target), MARK) as file:
            file.write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("content", [b"", b"\n<!doctype html><p>an older page"])
def test_an_empty_file_and_one_of_its_kind_are_replaced(tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "page.html"
    target.write_bytes(content)
    with FileBeside(str(target), MARK) as file:
        file.write("new")
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
        with pytest.raises(UsageError, match="is no file"):
            FileBeside(path, MARK)


def test_a_folder_that_is_not_there_is_found_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*none/page.html: No such file"):
        FileBeside(str(tmp_path / "none/page.html"), MARK)


def test_one_file_for_two_kinds_is_found_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for one, other in (("x", str(tmp_path / "x")), ("folder/x", "link/x"), ("folder/../x", "./x")):
        with (
            FileBeside(one, MARK) as page,
            FileBeside(other, b"trace") as trace,
            pytest.raises(UsageError, match="are one file"),
        ):
            page.require_other_than(trace)
    with FileBeside("x", MARK) as page, FileBeside("folder/x", b"trace") as trace, FileBeside("y", b"trace") as third:
        page.require_other_than(trace)
        page.require_other_than(third)
    # A link is replaced itself, and not the file behind it.
    (tmp_path / "z").symlink_to("x")
    with FileBeside("x", MARK) as page, FileBeside("z", b"trace") as trace:
        page.require_other_than(trace)
        page.write("page")
        trace.write("trace")
    assert [(tmp_path / name).read_text() for name in ("x", "z")] == ["page", "trace"]


def test_a_folder_that_is_gone_by_the_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with FileBeside(str(folder / "page.html"), MARK) as file:
        shutil.rmtree(folder)
        with pytest.raises(InputError, match=r"cannot write .*page\.html: No such file"):
            file.write("x")


@pytest.mark.root
@pytest.mark.parametrize("length", [1, 100_000])  # one byte stays in a buffer until the file is closed
def test_a_full_disk_is_told_and_nothing_is_left_on_it(length: int) -> None:
    with tmpfs(8192) as disk:
        (disk / "other").write_bytes(b"x" * 8192)
        with (
            FileBeside(str(disk / "page.html"), MARK) as file,
            pytest.raises(NoSpaceError, match=r"page\.html: No space"),
        ):
            file.write("x" * length)
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
    with FileBeside("page.html", MARK) as file:
        file.write("x")
    assert (tmp_path / "page.html").read_text() == "x"
