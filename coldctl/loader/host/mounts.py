"""Which filesystem, mount and block device a path is on.

The magic number of statfs(2) is not enough: ext2, ext3 and ext4 share one, and FUSE hides what is behind it. So this
reads proc(5)'s mountinfo, and finds the line by the mount id that the kernel gives for an open path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "panfs", "smb3", "smbfs", "virtiofs", "wekafs",
}  # fmt: skip
_NETWORK_FUSE = re.compile(
    r"fuse\.(alluxio|blobfuse2?|ceph|curvefs|davfs2?|gcsfuse|geesefs|glusterfs|goofys|hdfs|juicefs|mountpoint-s3|"
    r"rclone|s3fs|s3ql|seaweedfs|sshfs)"
)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `device` is `major:minor` of the superblock, `source` what was mounted, `root` the folder
    of the filesystem that shows at `point`, `options` those of the superblock."""

    id: int
    device: str
    root: str
    point: str
    filesystem: str
    source: str
    options: str


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """The disk or partition under a filesystem: `number` is `major:minor`, `path` its node in /dev."""

    number: str
    path: str


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the text of a mountinfo file, in its order. Lines that are not of its form are left out."""
    mounts = []
    for line in text.splitlines():
        front, dash, back = line.partition(" - ")
        fields, rest = front.split(" "), back.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 3 or not fields[0].isdigit():
            continue
        root, point, filesystem, source = (_unescaped(part) for part in (fields[3], fields[4], rest[0], rest[1]))
        mounts.append(Mount(int(fields[0]), fields[2], root, point, filesystem, source, rest[2]))
    return mounts


def read_mounts(proc: str = "/proc") -> list[Mount]:
    """The mounts that this process sees; none where /proc is missing."""
    try:
        with open(os.path.join(proc, "self/mountinfo"), encoding="utf-8", errors="surrogateescape") as file:
            return parse_mountinfo(file.read())
    except OSError:
        return []


def mount_of(path: str) -> Mount | None:
    """The mount that `path` (links followed) is on, or None when /proc does not tell. Raises OSError for no such path.

    Needs no permission to read the file, and opens nothing for reading.
    """
    mounts = read_mounts()
    mount_id = _mount_id(path)
    for mount in mounts:
        if mount.id == mount_id:
            return mount
    return longest_prefix(mounts, os.path.realpath(path))


def filesystem_of(path: str) -> str:
    """The type of the filesystem that `path` is on, as mountinfo spells it (`ext4`, `fuse.sshfs`), or `unknown`."""
    mount = mount_of(path)
    return mount.filesystem if mount else "unknown"


def longest_prefix(mounts: list[Mount], real_path: str) -> Mount | None:
    """The mount whose point is the longest folder prefix of `real_path`; of several on one point the last, which hides
    the others."""
    best = None
    for mount in mounts:
        inside = real_path == mount.point or real_path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_network(filesystem: str) -> bool:
    """Whether reads on this type of filesystem go over a network (or to the host of a virtual machine), so that many
    streams pay and its servers can stall. A FUSE filesystem that does not name itself counts as local."""
    return filesystem in _NETWORK or _NETWORK_FUSE.fullmatch(filesystem) is not None


def block_device(mount: Mount) -> BlockDevice | None:
    """The block device under `mount`; None where there is none or several layers hide it (tmpfs, overlayfs, network).

    btrfs has device numbers of its own, so there the mounted source is asked; of several devices that is one.
    """
    number = _number_of_node(mount.source) if mount.device.startswith("0:") else mount.device
    if number is None:
        return None
    try:
        with open(f"/sys/dev/block/{number}/uevent", encoding="utf-8") as file:
            name = next(line.strip().partition("=")[2] for line in file if line.startswith("DEVNAME="))
    except (OSError, StopIteration):
        return None
    return BlockDevice(number, f"/dev/{name}")


def read_ahead_kib(mount: Mount) -> int | None:
    """How far the kernel reads ahead on `mount`, in KiB: the filesystem's own setting (NFS, FUSE, btrfs), else that of
    its disk. None when neither is there."""
    device = block_device(mount)
    candidates = [f"/sys/class/bdi/{mount.device}/read_ahead_kb"]
    if device is not None:
        if mount.filesystem == "btrfs":
            candidates = [f"{folder}/bdi/read_ahead_kb" for folder in _btrfs_folders(device)]
        # A partition has no queue of its own; the disk's is one folder up.
        candidates += [f"/sys/dev/block/{device.number}/{up}queue/read_ahead_kb" for up in ("", "../")]
    for candidate in candidates:
        try:
            with open(candidate, encoding="utf-8") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return None


def _mount_id(path: str) -> int | None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("mnt_id:")), None)
    except OSError:
        return None
    finally:
        os.close(fd)


def _number_of_node(node: str) -> str | None:
    try:
        device = Path(node).stat().st_rdev if node.startswith("/") else 0
    except OSError:
        return None
    return f"{os.major(device)}:{os.minor(device)}" if device else None


def _btrfs_folders(device: BlockDevice) -> list[str]:
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/{device.number}"))
    try:
        return [str(folder) for folder in Path("/sys/fs/btrfs").iterdir() if (folder / "devices" / name).exists()]
    except OSError:
        return []


def _unescaped(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as three octal digits."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)
