"""What a benchmark ran on: the machine, the filesystem of the checkpoint, and the versions of what loads.

Nothing here imports torch, makes a CUDA context or fails: what the machine does not tell is null.
"""

from __future__ import annotations

import os
import platform
import re

from coldctl import __version__
from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.child.peers import BY_NAME
from coldctl.jobs.bench.machine.device_facts import device_facts
from coldctl.jobs.bench.machine.versions import version_of
from coldctl.loader.host.memory import read_kib
from coldctl.loader.host.mounts import Mount, block_device, mount_of, read_ahead_kib
from coldctl.results.bench import HostFacts

_LIBRARIES = ("torch", "safetensors", "numpy")
_UNKNOWN_HYPERVISOR = "hypervisor of unknown kind"
# What firmware says of itself under a hypervisor, where the CPU has no flag that says it (systemd, src/basic/virt.c).
_VIRTUAL_FIRMWARE = re.compile(
    r"QEMU|KVM|OpenStack|KubeVirt|VMware|VirtualBox|Xen|BHYVE|Parallels|Virtual Machine|Apple Virtualization|"
    r"Google Compute Engine|Amazon EC2 (?!.*metal)"
)


def host_facts(path: str, gpu_uuid: str | None = None, *, root: str = "/") -> HostFacts:
    """This machine, the mount of the checkpoint at `path`, and the GPU that loads go to, if they do.

    `root` is where /proc and /sys are looked for; the mount of `path` is always the real one.
    """
    cpuinfo = _cpuinfo(root)
    mount = _mount(path)
    disk = block_device(mount) if mount else None
    ahead_kib = read_ahead_kib(mount) if mount else None
    return HostFacts(
        cpu=_cpu(cpuinfo),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(root),
        kernel=platform.release(),
        virtual=_hypervisor(cpuinfo, root),
        filesystem=mount.filesystem if mount else "unknown",
        mount_point=mount.point if mount else None,
        mount_options=mount.options if mount else None,
        block_device=disk.path if disk else None,
        read_ahead_bytes=None if ahead_kib is None else ahead_kib * 1024,
        transparent_huge_pages=_chosen(_read(root, "sys/kernel/mm/transparent_hugepage/enabled")),
        load_average=_load_average(root),
        device=device_facts(gpu_uuid) if gpu_uuid else None,
        versions=_versions(),
    )


def _read(root: str, name: str) -> str:
    """The text of a file that the kernel or the firmware shows; empty where there is none."""
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
            return file.read().strip("\0\n\t ")
    except OSError:
        return ""


def _cpuinfo(root: str) -> dict[str, str]:
    """The fields of the first processor."""
    first, _, _ = _read(root, "proc/cpuinfo").partition("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _cpu(cpuinfo: dict[str, str]) -> str:
    """The model's name; on ARM, whose kernel names none, the numbers that stand for it."""
    if name := cpuinfo.get("model name") or cpuinfo.get("cpu"):
        return name
    numbers = [f"{field} {cpuinfo[f'CPU {field}']}" for field in ("implementer", "part") if f"CPU {field}" in cpuinfo]
    return " ".join([platform.machine(), *numbers])


def _memory_bytes(root: str) -> int | None:
    try:
        return read_kib(os.path.join(root, "proc/meminfo"), "MemTotal")
    except (EnvironmentLacksError, ValueError, IndexError):
        return None


def _hypervisor(cpuinfo: dict[str, str], root: str) -> str | None:
    """What runs this machine, by the name that it gives itself; None on hardware."""
    told = _read(root, "sys/hypervisor/type") or _read(root, "proc/device-tree/hypervisor/compatible")
    if told:
        return told
    firmware = " ".join(
        filter(None, (_read(root, f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")))
    )
    if "flags" not in cpuinfo:
        return firmware if _VIRTUAL_FIRMWARE.search(firmware) else None
    if "hypervisor" not in cpuinfo["flags"].split():
        return None
    return firmware or _hypervisor_by_clock(root)


def _hypervisor_by_clock(root: str) -> str:
    """Small hypervisors show no firmware, but KVM offers its guests a clock."""
    clocks = _read(root, "sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    return "KVM" if "kvm-clock" in clocks else _UNKNOWN_HYPERVISOR


def _mount(path: str) -> Mount | None:
    try:
        return mount_of(path)
    except OSError:
        return None


def _chosen(setting: str) -> str | None:
    """The word in brackets of a setting such as `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", setting)
    return found[1] if found else None


def _load_average(root: str) -> float | None:
    try:
        return float(_read(root, "proc/loadavg").split()[0])
    except (IndexError, ValueError):
        return None


def _versions() -> dict[str, str | None]:
    """Of coldctl, Python and the libraries it loads with (null: not installed), and of the peers that are installed."""
    peers = {peer.distribution: version_of(peer.distribution) for peer in BY_NAME.values()}
    return {
        "coldctl": __version__,
        "python": platform.python_version(),
        **{library: version_of(library) for library in _LIBRARIES},
        **{peer: version for peer, version in peers.items() if version},
    }
