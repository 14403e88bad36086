"""A disk as fast as memory: ext4 on a loop device over a file in /dev/shm. Needs root."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coldctl.units import MIB
from scripts.bench import guest_memory


@contextmanager
def ram_disk(size_bytes: int) -> Iterator[Path]:
    """Mount it with room for `size_bytes` of files, and take it away afterwards. The guest's memory stays its own.

    The image is written full first and never discarded, so that no round pays for memory that another has got already.
    """
    with (
        guest_memory.kept(6 * size_bytes),
        tempfile.TemporaryDirectory(prefix="coldctl-bench-", dir="/dev/shm") as folder,
    ):
        image, mount = Path(folder) / "image", Path(folder) / "mount"
        mount.mkdir()
        _fill(image, size_bytes + size_bytes // 16 + 64 * MIB)
        options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        _do("mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, image)
        _do("mount", "-o", "loop", image, mount)
        try:
            yield mount
        finally:
            _do("umount", mount)


def _fill(image: Path, size_bytes: int) -> None:
    block = bytes(MIB)
    with image.open("wb") as file:
        for _ in range(-(-size_bytes // MIB)):
            file.write(block)


def _do(*command: str | Path) -> None:
    subprocess.run(command, check=True)
