"""Real filesystems for tests: loop-mounted images in memory, overlayfs and tmpfs, gone again when the block ends.

Also what is needed to look at them without coldctl: fincore for residency, filefrag for extents, and blocks that
cannot be read because the image behind the loop device was cut short.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import pytest

T = TypeVar("T")

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
NOBODY = 65534

MAP_AND_WAIT = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = open(sys.argv[1], "rb")
address = libc.mmap(None, 4 << 20, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
ctypes.string_at(address, 4 << 20)
if sys.argv[2] == "lock":
    assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(4 << 20)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class LoopFilesystem:
    """A mounted image: `path` is the mount point, `image` the file behind it, `device` the loop device between."""

    path: Path
    image: Path
    device: str

    def make_unreadable(self, path: Path, offset_bytes: int) -> None:
        """Cut the image where the file's byte `offset_bytes` lies: all that is on the device from there on gives EIO.

        The filesystem becomes read-only first, or its own writes would make the image longer again.
        """
        device_offset = device_offset_bytes(path, offset_bytes)
        run("mount", "-o", "remount,ro", str(self.path))
        os.truncate(self.image, device_offset)
        run("blockdev", "--flushbufs", self.device)
        drop(path)

    def corrupt(self, path: Path, offset_bytes: int) -> None:
        """Overwrite one block of a file behind the back of a filesystem that keeps checksums (btrfs): EIO there."""
        block = path.read_bytes()[offset_bytes : offset_bytes + PAGE]
        run("umount", str(self.path))
        place = self.image.read_bytes().find(block)
        assert place >= 0
        with self.image.open("r+b") as file:
            file.seek(place)
            file.write(bytes(PAGE))
        run("blockdev", "--flushbufs", self.device)
        run("mount", self.device, str(self.path))


def run(*command: str) -> str:
    """Run a tool and return what it printed; its complaints are in the CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def need(*tools: str) -> None:
    """Skip the test when one of the tools is not installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


_READ_AHEAD_SECTORS = "256"
"""The kernel's usual 128 KiB. A loop device keeps what its last user left it with."""


@contextmanager
def loop_filesystem(kind: str, size_bytes: int, *mkfs: str, mount: str = "") -> Iterator[LoopFilesystem]:
    """A fresh filesystem of `kind` (ext4, ext3, xfs, btrfs) on a sparse image in memory. `mkfs` and `mount` are options
    for making and mounting it."""
    need(f"mkfs.{kind}", "losetup")
    with _work_folder("/dev/shm") as folder:
        image, point = folder / "image", folder / "mount"
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(size_bytes)
        # Small images would get blocks of 1 KiB, which no volume that holds weights has.
        usual = ["-b", "4096"] if kind in ("ext3", "ext4") else []
        run(f"mkfs.{kind}", "-q", *usual, *mkfs, str(image))
        device = run("losetup", "--find", "--show", str(image)).strip()
        run("blockdev", "--setra", _READ_AHEAD_SECTORS, device)
        try:
            with _mounted("-t", kind, *(("-o", mount) if mount else ()), device, str(point)):
                yield LoopFilesystem(point, image, device)
        finally:
            run("losetup", "--detach", device)


@contextmanager
def tmpfs(size_bytes: int) -> Iterator[Path]:
    """A tmpfs of the given size."""
    with _work_folder() as folder, _mounted("-t", "tmpfs", "-o", f"size={size_bytes},mode=777", "tmpfs", str(folder)):
        yield folder


@contextmanager
def overlayfs(lower: Path) -> Iterator[Path]:
    """An overlay over `lower`, as a container image shows its files; what is written goes to a tmpfs."""
    with _work_folder() as folder, tmpfs(64 * MIB) as scratch:
        (scratch / "upper").mkdir()
        (scratch / "work").mkdir()
        options = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work"
        with _mounted("-t", "overlay", "-o", options, "overlay", str(folder)):
            yield folder


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A v1 memory cgroup below this process's own, with a limit. Skips where that controller is not to be had."""
    parent = _own_memory_cgroup()
    if parent is None or not os.access(parent, os.W_OK):
        pytest.skip("no writable cgroup v1 memory controller")
    folder = Path(tempfile.mkdtemp(prefix="coldctl-", dir=parent))
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()


def _own_memory_cgroup() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return next((found for found in [Path("/sys/fs/cgroup/memory" + path)] if found.is_dir()), None)
    return None


def write_synced(path: Path, nbytes: int, *, byte: bytes = b"") -> None:
    """A file of `nbytes` random bytes (or of one repeated byte), on disk when this returns."""
    with path.open("wb") as file:
        for start in range(0, nbytes, MIB):
            length = min(MIB, nbytes - start)
            file.write(byte * length if byte else os.urandom(length))
        file.flush()
        os.fsync(file.fileno())


def fragment(path: Path, piece_bytes: int, pieces: int) -> None:
    """Write a file whose pieces get their place on the disk in a random order, one by one."""
    order = list(range(pieces))
    random.Random(1).shuffle(order)
    with path.open("wb") as file:
        for piece in order:
            file.seek(piece * piece_bytes)
            file.write(os.urandom(piece_bytes))
            file.flush()
            os.fsync(file.fileno())


def drop(path: Path) -> None:
    """Take a file's pages out of the cache with vmtouch, an evictor that is not ours."""
    need("vmtouch")
    run("vmtouch", "-qe", str(path))


def fincore_bytes(path: Path) -> int:
    """The resident bytes of a file as util-linux's fincore counts them: whole pages, so up to a page above the size."""
    need("fincore")
    return int(json.loads(run("fincore", "--json", "--bytes", str(path)))["fincore"][0]["res"])


def filefrag_runs(path: Path) -> list[int]:
    """The lengths in bytes of the physically adjacent runs of a file, from the table that filefrag prints."""
    runs: list[int] = []
    expected = -1
    for _, physical, length in _filefrag_rows(path):
        if physical == expected:
            runs[-1] += length
        else:
            runs.append(length)
        expected = physical + length
    return runs


def device_offset_bytes(path: Path, offset_bytes: int) -> int:
    """Where on its device the byte at `offset_bytes` of a file lies."""
    for logical, physical, length in _filefrag_rows(path):
        if logical <= offset_bytes < logical + length:
            return physical + offset_bytes - logical
    raise AssertionError(f"{path} has no block for byte {offset_bytes}")


def _filefrag_rows(path: Path) -> list[tuple[int, int, int]]:
    need("filefrag")
    rows = re.findall(
        r"^ *\d+: +(\d+)\.\. *\d+: +(\d+)\.\. *\d+: +(\d+):", run("filefrag", "-v", "-b1", str(path)), re.MULTILINE
    )
    return [(int(logical), int(physical), int(length)) for logical, physical, length in rows]


@contextmanager
def holder(path: Path, how: str) -> Iterator[int]:
    """Another process that maps the first 4 MiB of the file (and locks them, with `lock`); its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", MAP_AND_WAIT, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.communicate()


def as_nobody(work: Callable[[], T]) -> T:
    """What `work` returns in a child process that runs as the user nobody; it has to be picklable."""
    return in_child(work, prepare=_become_nobody)


def in_child(work: Callable[[], T], *, prepare: Callable[[], object]) -> T:
    """What `work` returns in a child process after `prepare`; it has to be picklable. Its error fails the test."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome: tuple[bool, object] = (False, "did not start")
        try:
            prepare()
            outcome = (True, work())
        except BaseException:
            outcome = (False, traceback.format_exc())
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        succeeded, value = pickle.load(pipe)
    os.waitpid(child, 0)
    assert succeeded, value
    return cast("T", value)


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@contextmanager
def _work_folder(parent: str | None = None) -> Iterator[Path]:
    """A new folder that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="coldctl-test-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _mounted(*arguments: str) -> Iterator[None]:
    run("mount", *arguments)
    try:
        yield
    finally:
        if subprocess.run(["umount", arguments[-1]], check=False, capture_output=True).returncode != 0:
            run("umount", "--lazy", arguments[-1])
