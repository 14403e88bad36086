"""`repack --force` on real mounts and real filesystems: the source is never harmed, and the target is old or new."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldctl.errors import ColdctlError, EnvironmentLacksError, RefusedError, UsageError
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from tests.cli.process import ROOT, clean_environment
from tests.filesystems import loop_filesystem, need, run
from tests.tiny import contents, made, read_folder, snapshot, without_places, write_shard, write_sharded

MIB = 1 << 20
PATIENCE_SECONDS = 60.0
# The promise is 2 s; the rest is for machines that have other things to do.
LIMIT_SECONDS = 2.0 + 3.0

OLD = [{"a": made("U8", 5000, seed=9)}, {"old": made("U8", 9)}, {"older": made("U8", 7)}]
NEW = [{"a": made("U8", 5000), "b": made("U8", 8192)}, {"c": made("U8", 3)}]


def force(source: Path, target: Path, *, dry_run: bool = False) -> None:
    repack(RepackOptions(str(source), str(target), force=True, dry_run=dry_run))


def refuse(source: Path, target: Path, kind: type[ColdctlError], message: str) -> None:
    """Refused before a byte is written, also by a dry run."""
    before = snapshot(source), snapshot(target)
    for dry_run in (True, False):
        with pytest.raises(kind, match=message):
            force(source, target, dry_run=dry_run)
    assert (snapshot(source), snapshot(target)) == before


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_sharded(tmp_path / "source", NEW)
    (tmp_path / "source" / "config.json").write_text("{}")
    (tmp_path / "source" / "sub").mkdir()
    (tmp_path / "source" / "sub" / "vocab.txt").write_text("x")
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A checkpoint that repack made of other weights, and a file beside it."""
    write_sharded(tmp_path / "old", OLD)
    (tmp_path / "old" / "config.json").write_text('{"old": true}')
    repack(RepackOptions(str(tmp_path / "old"), str(tmp_path / "target")))
    (tmp_path / "target" / "notes.txt").write_text("mine")
    return tmp_path / "target"


@contextmanager
def bound(what: Path, where: Path) -> Iterator[Path]:
    run("mount", "--bind", str(what), str(where))
    try:
        yield where
    finally:
        run("umount", str(where))


@pytest.mark.parametrize("single_file", [True, False])
def test_a_source_that_is_links_into_the_target(tmp_path: Path, single_file: bool) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_shard(b / "weights.safetensors", {"a": made("U8", 5)})
    repack(RepackOptions(str(b), str(tmp_path / "made")))
    (tmp_path / "made" / "coldctl.json").rename(b / "coldctl.json")
    a.mkdir()
    (a / "model.safetensors").symlink_to("step.safetensors")
    (a / "step.safetensors").symlink_to("../b/weights.safetensors")
    refuse(
        a / "model.safetensors" if single_file else a, b, RefusedError, r"weights\.safetensors in .* is a file of the"
    )


def test_a_sidecar_that_is_a_link_into_the_target(source: Path, target: Path) -> None:
    hub = source.parent / "snapshots" / "abc"
    hub.parent.mkdir()
    source.rename(hub)
    target.rename(source.parent / "blobs")
    (hub / "config.json").unlink()
    (hub / "config.json").symlink_to("../../blobs/config.json")
    refuse(hub, source.parent / "blobs", RefusedError, r"config\.json in .* is a file of the source")


def test_a_target_of_hard_links_to_the_source_is_replaced_and_the_source_stays(source: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in source.iterdir():
        if path.is_file():
            os.link(path, linked / path.name)
    before = snapshot(source)
    force(source, linked)
    assert snapshot(source) == before
    assert not verify(VerifyOptions(str(linked))).findings


def test_a_target_of_links_to_the_source_is_replaced_and_the_source_stays(source: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (linked / path.name).symlink_to(path)
    before = snapshot(source)
    force(source, linked)
    assert snapshot(source) == before
    assert not any(path.is_symlink() for path in linked.rglob("*"))


@pytest.mark.root
@pytest.mark.parametrize(
    ("what", "below", "message"),
    [
        ("source", ".", "source and target are the same folder"),
        ("source", "new", "lies inside the source"),
        ("source", "sub", "lies inside the source"),
        ("source/sub", ".", "lies inside the source"),
        ("source/sub", "new", "lies inside the source"),
    ],
)
def test_a_bind_mount_of_the_source_is_the_source(
    source: Path, tmp_path: Path, what: str, below: str, message: str
) -> None:
    (tmp_path / "point").mkdir()
    with bound(tmp_path / what, tmp_path / "point") as point:
        refuse(source, point / below, UsageError, message)


@pytest.mark.root
def test_a_source_that_is_a_bind_mount_from_inside_the_target(source: Path, tmp_path: Path) -> None:
    outer, point = tmp_path / "outer", tmp_path / "point"
    outer.mkdir()
    source.rename(outer / "sub")
    point.mkdir()
    with bound(outer / "sub", point):
        refuse(point, outer, RefusedError, "a folder of the source lies inside the target")


@pytest.mark.root
def test_a_file_of_the_source_mounted_into_the_target(source: Path, target: Path) -> None:
    with bound(source / "config.json", target / "config.json"):
        refuse(source, target, RefusedError, r"config\.json in .* is a file of the source")


@contextmanager
def busy(target: Path) -> Iterator[str]:
    """Another file mounted over one that has to go: EBUSY."""
    other = target.parent / "mounted.json"
    other.write_text("mounted")
    with bound(other, target / "config.json"):
        yield "config.json"


@contextmanager
def immutable(target: Path) -> Iterator[str]:
    """A file that may neither be renamed nor removed: EPERM."""
    path = target / "model-00003-of-00003.safetensors"
    need("chattr")
    run("chattr", "+i", str(path))
    try:
        yield path.name
    finally:
        run("chattr", "-i", str(path))


@pytest.mark.root
@pytest.mark.parametrize("hindered", [busy, immutable], ids=["busy", "immutable"])
def test_an_old_file_that_cannot_go_leaves_the_old_checkpoint_as_it_was(
    source: Path, target: Path, hindered: Callable[[Path], Iterator[str]]
) -> None:
    with loop_filesystem("ext4", 64 * MIB) as filesystem:
        there = filesystem.path / "parent" / "target"
        run("cp", "-a", "--", str(target.parent), str(there.parent))
        with hindered(there) as name:  # type: ignore[attr-defined]
            before = snapshot(there)
            with pytest.raises(EnvironmentLacksError, match=f"cannot replace {there}/{name}"):
                force(source, there)
            assert snapshot(there) == before
            assert not verify(VerifyOptions(str(there))).errors
        force(source, there)
        assert without_places(read_folder(there)) == {name: t for shard in NEW for name, t in shard.items()}


def test_a_folder_in_a_files_place_leaves_the_old_checkpoint_as_it_was(source: Path, target: Path) -> None:
    (target / "sub" / "vocab.txt").mkdir(parents=True)
    refuse(source, target, RefusedError, r"sub/vocab\.txt in .* is a folder")


KILLED = """
import os, sys
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader import syscalls
left = int(sys.argv[3])
def counted(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return real(*arguments, **options)
    return call
os.rename, os.unlink = counted(os.rename), counted(os.unlink)
syscalls.rename_no_replace = counted(syscalls.rename_no_replace)
repack(RepackOptions(sys.argv[1], sys.argv[2], force=True))
"""


def test_a_kill_between_any_two_renames_loses_nothing(source: Path, target: Path, tmp_path: Path) -> None:
    repack(RepackOptions(str(source), str(tmp_path / "whole")))
    old = contents(target)
    new = contents(tmp_path / "whole") | {"notes.txt": b"mine"}
    for number in range(1, 100):
        there = tmp_path / f"target-{number}"
        run("cp", "-a", "--", str(target), str(there))
        command = [sys.executable, "-c", KILLED, str(source), str(there), str(number)]
        code = subprocess.run(command, env=clean_environment(), check=False).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
        found = contents(there)
        seen = {path: data for path, data in found.items() if not path.startswith(".coldctl-")}
        # An index stands only beside all of its shards.
        if "model.safetensors.index.json" in seen:
            whole = old if seen["model.safetensors.index.json"] == old["model.safetensors.index.json"] else new
            assert whole.items() <= (seen | {"config.json": whole["config.json"]}).items()
        with pytest.raises(RefusedError, match="is not empty"):
            repack(RepackOptions(str(source), str(there)))
        assert contents(there) in (old, new), number
        force(source, there)
        assert contents(there) == new
    assert 20 < number < 99


MANY = 5_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with very many files beside it."""
    folder = tmp_path_factory.mktemp("many")
    write_shard(folder / "model.safetensors", {"a": made("U8", 5)})
    for number in range(MANY):
        (folder / f"{number}.txt").write_bytes(b"x")
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", ["copy", "commit"])
def test_a_signal_among_very_many_files_leaves_nothing(
    many: Path, tmp_path: Path, number: signal.Signals, when: str
) -> None:
    target = tmp_path / "target"
    command = [sys.executable, "-m", "coldctl", "repack", str(many), str(target)]
    environment = clean_environment({"PYTHONPATH": str(ROOT)})
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            give_up = time.monotonic() + PATIENCE_SECONDS
            while not has_begun(target, when):
                assert process.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.001)
            process.send_signal(number)
            assert process.wait(LIMIT_SECONDS) == 128 + number
        finally:
            process.kill()
    assert not target.exists()


def has_begun(target: Path, when: str) -> bool:
    if when == "copy":
        return any(target.glob(".coldctl-*.tmp/new/1000"))
    return (target / "10.txt").exists()  # one of the first by name, and names are given in that order


@pytest.mark.parametrize("where", ["old", "old/d", "new", "."])
@pytest.mark.parametrize("force", [False, True])
def test_a_forged_journal_moves_nothing_from_elsewhere(tmp_path: Path, where: str, force: bool) -> None:
    """Whoever may write to the target could lay a folder there that looks like a killed run's and leads elsewhere."""
    victim, target = tmp_path / "victim", tmp_path / "target"
    victim.mkdir()
    for name in ("secret.txt", "0"):
        (victim / name).write_text("mine")
    private = target / ".coldctl-7.tmp"
    link = private if where == "." else private / where
    link.parent.mkdir(parents=True)
    if where == ".":
        (victim / "old").symlink_to(victim)
    link.symlink_to(victim)
    name = "d/secret.txt" if where == "old/d" else "secret.txt"
    journal = (victim if where == "." else private) / "commit.json"
    journal.write_text(json.dumps([[], [name], []]))
    write_shard(tmp_path / "source" / "model.safetensors", {"a": made("U8", 5000)})
    with contextlib.suppress(ColdctlError):
        repack(RepackOptions(str(tmp_path / "source"), str(target), force=force))
    assert (victim / "secret.txt").read_text() == "mine"
    assert (victim / "0").read_text() == "mine"
    assert not (target / "secret.txt").exists()


NO_JOURNALS = ['[[],["a\\u0000b"],[]]', '[[],["\\ud800"],[]]', "[" * 100_000, "{}", '[[["a",[1]]],[],[]]']


@pytest.mark.parametrize("text", NO_JOURNALS)
def test_a_journal_that_coldctl_did_not_write_is_not_acted_on(tmp_path: Path, text: str) -> None:
    target = tmp_path / "target"
    (target / ".coldctl-7.tmp" / "new").mkdir(parents=True)
    (target / ".coldctl-7.tmp" / "commit.json").write_text(text)
    write_shard(tmp_path / "source" / "model.safetensors", {"a": made("U8", 5000)})
    repack(RepackOptions(str(tmp_path / "source"), str(target), force=True))
    assert (target / "model.safetensors").exists()
    assert (target / ".coldctl-7.tmp" / "commit.json").read_text() == text
