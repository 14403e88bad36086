"""Which mount and device a path is on, on mounts made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coldctl.loader.host.mounts import block_device, filesystem_of, mount_of, read_ahead_kib
from tests.filesystems import MIB, LoopFilesystem, loop_filesystem, overlayfs, run, tmpfs

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", params=["ext4", "ext3", "xfs", "btrfs"])
def filesystem(request: pytest.FixtureRequest) -> Iterator[tuple[str, LoopFilesystem]]:
    with loop_filesystem(request.param, 512 * MIB) as made:
        (made.path / "folder").mkdir()
        yield request.param, made


def test_type_and_device(filesystem: tuple[str, LoopFilesystem]) -> None:
    kind, made = filesystem
    mount = mount_of(str(made.path / "folder"))
    assert mount is not None
    assert (mount.filesystem, mount.point, mount.source) == (kind, str(made.path), made.device)
    device = block_device(mount)
    assert device is not None
    assert device.path == made.device


def test_read_ahead(filesystem: tuple[str, LoopFilesystem]) -> None:
    """blockdev counts sectors of 512 bytes; btrfs has a setting of its own, above its device's."""
    kind, made = filesystem
    mount = mount_of(str(made.path))
    assert mount is not None
    found = read_ahead_kib(mount)
    if kind == "btrfs":
        folders = [path for path in Path("/sys/fs/btrfs").iterdir() if (path / "devices" / made.device[5:]).exists()]
        assert found == int((folders[0] / "bdi/read_ahead_kb").read_text())
    else:
        assert found == int(run("blockdev", "--getra", made.device)) // 2


def test_a_btrfs_subvolume(filesystem: tuple[str, LoopFilesystem]) -> None:
    """stat shows a device number for it that mountinfo does not have."""
    kind, made = filesystem
    if kind == "btrfs":
        run("btrfs", "subvolume", "create", str(made.path / "volume"))
        mount = mount_of(str(made.path / "volume"))
        assert mount is not None
        assert mount.point == str(made.path)


def test_a_bind_mount_and_a_link_to_it(filesystem: tuple[str, LoopFilesystem], tmp_path: Path) -> None:
    kind, made = filesystem
    bound, link = tmp_path / "bound", tmp_path / "link"
    bound.mkdir()
    link.symlink_to(bound)
    run("mount", "--bind", str(made.path / "folder"), str(bound))
    try:
        mount = mount_of(str(link))
        assert mount is not None
        assert (mount.filesystem, mount.root, mount.point) == (kind, "/folder", str(bound))
    finally:
        run("umount", str(bound))


def test_no_device_under_overlayfs_and_tmpfs() -> None:
    with tmpfs(8 * MIB) as lower, overlayfs(lower) as overlay:
        for path, kind in ((lower, "tmpfs"), (overlay, "overlay")):
            assert filesystem_of(str(path)) == kind
            mount = mount_of(str(path))
            assert mount is not None
            assert block_device(mount) is None


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mount_of(str(tmp_path / "absent"))
