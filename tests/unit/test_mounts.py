"""coldctl.loader.host.mounts on mountinfo texts."""

from __future__ import annotations

import pytest

from coldctl.loader.host.mounts import Mount, is_network, longest_prefix, parse_mountinfo

TEXT = r"""
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:39 / /with\040space\134and\011tab rw shared:2 master:1 - nfs4 server:/a\040b rw,vers=4.2
29 27 0:40 /sub /models ro - btrfs /dev/loop3 rw
30 27 0:41 / /models rw - overlay overlay rw,lowerdir=/a
31 27 0:42 / /models-old rw - xfs /dev/vdb rw
not a line of mountinfo
32 27 0:43 / /cut
"""


def test_fields_and_escapes() -> None:
    mounts = parse_mountinfo(TEXT)
    assert [mount.id for mount in mounts] == [27, 28, 29, 30, 31]
    assert mounts[0] == Mount(27, "254:0", "/", "/", "ext4", "/dev/vda", "rw,discard")
    assert mounts[1].point == "/with space\\and\ttab"
    assert mounts[1].source == "server:/a b"
    assert (mounts[2].root, mounts[2].options) == ("/sub", "rw")


@pytest.mark.parametrize(
    ("path", "mount_id"),
    [
        ("/", 27),
        ("/etc/passwd", 27),
        ("/models", 30),
        ("/models/a/b", 30),
        ("/models-old/a", 31),
        ("/models-older", 27),
    ],
)
def test_longest_prefix_ends_at_a_folder_and_the_upper_mount_hides_the_lower(path: str, mount_id: int) -> None:
    mount = longest_prefix(parse_mountinfo(TEXT), path)
    assert mount is not None
    assert mount.id == mount_id


def test_no_mounts_no_answer() -> None:
    assert longest_prefix([], "/a") is None


@pytest.mark.parametrize("filesystem", ["nfs", "nfs4", "cifs", "ceph", "lustre", "9p", "fuse.sshfs", "fuse.juicefs"])
def test_network(filesystem: str) -> None:
    assert is_network(filesystem)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk", "fuse.ntfs", "nfsd"])
def test_local(filesystem: str) -> None:
    assert not is_network(filesystem)
