"""bench: host_facts on trees of files as machines show them, and on this machine against other sources."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from coldctl import __version__
from coldctl.jobs.bench.machine.device_facts import described, device_facts
from coldctl.jobs.bench.machine.host_facts import host_facts
from coldctl.jobs.bench.machine.nvml import NvmlDevice
from coldctl.results.bench import DeviceFacts

X86 = """processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model name	: Intel(R) Xeon(R) Platinum 8480C
flags		: fpu vme sse2{flag} ht

processor	: 1
model name	: another
"""
ARM = """processor	: 0
BogoMIPS	: 2000.00
Features	: fp asimd evtstrm aes
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd4f
CPU revision	: 0
"""


def machine(root: Path, **files: str) -> str:
    """A tree with these files; `__` in a name stands for `/`."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def dmi(vendor: str, product: str) -> dict[str, str]:
    return {"sys__class__dmi__id__sys_vendor": f"{vendor}\n", "sys__class__dmi__id__product_name": f"{product}\n"}


def printed(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.strip()


def test_the_files_of_a_machine_are_read(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__cpuinfo=X86.format(flag=""),
        proc__meminfo="MemTotal:       131923136 kB\nMemFree:  1 kB\n",
        proc__loadavg="3.25 2.00 1.00 2/345 6789\n",
        sys__kernel__mm__transparent_hugepage__enabled="always [madvise] never\n",
        **dmi("Supermicro", "SYS-821GE-TNHR"),
    )
    found = host_facts("/", root=root)
    assert found.cpu == "Intel(R) Xeon(R) Platinum 8480C"
    assert found.memory_bytes == 131923136 * 1024
    assert (found.load_average, found.transparent_huge_pages, found.virtual) == (3.25, "madvise", None)
    assert found.device is None


def test_a_machine_that_tells_nothing_gives_nulls_and_no_error(tmp_path: Path) -> None:
    found = host_facts(str(tmp_path / "no such path"), "GPU-none", root=str(tmp_path / "empty"))
    assert (found.memory_bytes, found.load_average, found.transparent_huge_pages, found.virtual) == (None,) * 4
    assert (found.filesystem, found.mount_point, found.mount_options) == ("unknown", None, None)
    assert (found.block_device, found.read_ahead_bytes, found.device) == (None, None, None)
    assert (found.cpu, found.kernel) == (platform.machine(), os.uname().release)


@pytest.mark.parametrize("text", ["", "no colon", "MemTotal:", "MemTotal: many kB", "\0\xff"])
def test_files_of_another_form_give_nulls_and_no_error(tmp_path: Path, text: str) -> None:
    names = ("cpuinfo", "meminfo", "loadavg")
    files = {f"proc__{name}": text for name in names} | {"sys__kernel__mm__transparent_hugepage__enabled": text}
    found = host_facts("/", root=machine(tmp_path, **files))
    assert (found.cpu, found.memory_bytes) == (platform.machine(), None)
    assert (found.load_average, found.transparent_huge_pages) == (None, None)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"proc__cpuinfo": X86.format(flag="")}, None),
        ({"proc__cpuinfo": X86.format(flag=""), **dmi("Amazon EC2", "c5.metal")}, None),
        ({"proc__cpuinfo": X86.format(flag=" hypervisor")}, "hypervisor of unknown kind"),
        (
            {
                "proc__cpuinfo": X86.format(flag=" hypervisor"),
                "sys__devices__system__clocksource__clocksource0__available_clocksource": "tsc kvm-clock \n",
            },
            "KVM",
        ),
        ({"proc__cpuinfo": X86.format(flag=" hypervisor"), **dmi("QEMU", "Standard PC")}, "QEMU Standard PC"),
        ({"proc__cpuinfo": X86.format(flag=" hypervisor"), "sys__hypervisor__type": "xen\n"}, "xen"),
        ({"proc__cpuinfo": ARM}, None),
        ({"proc__cpuinfo": ARM, **dmi("Amazon EC2", "c7g.metal")}, None),
        ({"proc__cpuinfo": ARM, **dmi("Amazon EC2", "c7g.4xlarge")}, "Amazon EC2 c7g.4xlarge"),
        ({"proc__cpuinfo": ARM, **dmi("NVIDIA", "GH200 P4848")}, None),
        ({"proc__cpuinfo": ARM, "proc__device-tree__hypervisor__compatible": "linux,kvm\0"}, "linux,kvm"),
    ],
)
def test_the_hypervisor_is_named_where_there_is_one(tmp_path: Path, files: dict[str, str], name: str | None) -> None:
    assert host_facts("/", root=machine(tmp_path, **files)).virtual == name


def test_an_arm_cpu_is_named_by_its_numbers(tmp_path: Path) -> None:
    found = host_facts("/", root=machine(tmp_path, proc__cpuinfo=ARM))
    assert found.cpu == f"{platform.machine()} implementer 0x41 part 0xd4f"


def test_this_machine_is_described_as_its_own_tools_do(tmp_path: Path) -> None:
    found = host_facts(str(tmp_path))
    assert found.kernel == printed("uname", "-r")
    assert str(found.cpus) == printed("nproc")
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.load_average is not None
    assert found.load_average >= 0
    if platform.machine() == "x86_64":
        by_lscpu = " ".join(printed("lscpu").split())
        assert f"Model name: {found.cpu}" in by_lscpu
        assert (found.virtual is not None) == ("Hypervisor vendor:" in by_lscpu)


def test_the_mount_is_that_of_the_path(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/proc", "/dev"):
        found = host_facts(path)
        columns = ("-o", "FSTYPE,TARGET,FS-OPTIONS,SOURCE")
        seen = json.loads(printed("findmnt", "--json", *columns, "--target", path))["filesystems"][0]
        assert (found.filesystem, found.mount_point) == (seen["fstype"], seen["target"])
        assert found.mount_options == seen["fs-options"]
        source = seen["source"].partition("[")[0]
        assert bool(found.block_device) == source.startswith("/dev/")
        if found.block_device and os.path.exists(source):
            assert os.stat(found.block_device).st_rdev == os.stat(source).st_rdev
            if found.filesystem != "btrfs":  # has a read-ahead of its own
                assert found.read_ahead_bytes == int(printed("lsblk", "-ndo", "RA", source)) * 1024


def test_versions_are_those_installed_and_torch_is_not_imported() -> None:
    program = (
        "import json, sys; from coldctl.jobs.bench.machine.host_facts import host_facts; "
        "print(json.dumps([host_facts('/').versions, 'torch' in sys.modules]))"
    )
    done = subprocess.run((sys.executable, "-c", program), check=True, capture_output=True, text=True)
    versions, torch_imported = json.loads(done.stdout)
    assert not torch_imported
    assert (versions["coldctl"], versions["python"]) == (__version__, sys.version.split()[0])
    for library in ("torch", "safetensors", "numpy"):
        assert versions[library] == version(library)
    assert set(versions) - {"coldctl", "python", "torch", "safetensors", "numpy"} <= {
        "fastsafetensors", "runai-model-streamer", "instanttensor", "tensorizer",
    }  # fmt: skip
    assert None not in versions.values()


class RecordedNvml:
    """The driver's answers as recorded, by function: text, a number, or the error 3 (not supported)."""

    def __init__(self, **answers: str | int) -> None:
        for function, answer in answers.items():
            setattr(self, function, self._text(answer) if isinstance(answer, str) else self._number(answer))

    @staticmethod
    def _text(answer: str) -> Any:
        def call(*arguments: Any) -> int:
            assert len(answer) < arguments[-1]
            arguments[-2].value = answer.encode()
            return 0

        return call

    @staticmethod
    def _number(answer: int) -> Any:
        def call(*arguments: Any) -> int:
            target = arguments[-1]._obj
            setattr(target, "total" if isinstance(target, ctypes.Structure) else "value", answer)
            return 0

        return call


def test_a_gpu_is_described_by_what_its_driver_says() -> None:
    nvml = RecordedNvml(
        nvmlDeviceGetName="NVIDIA H200",
        nvmlSystemGetDriverVersion="580.95.05",
        nvmlSystemGetCudaDriverVersion_v2=13000,
        nvmlDeviceGetMemoryInfo_v2=150754820096,
        nvmlDeviceGetCurrPcieLinkGeneration=5,
        nvmlDeviceGetCurrPcieLinkWidth=16,
    )
    found = described(NvmlDevice(nvml, ctypes.c_void_p()))
    assert found == DeviceFacts("NVIDIA H200", "580.95.05", "13.0", 150754820096, 5, 16)


def test_what_the_driver_does_not_say_is_null() -> None:
    def not_supported(*_: object) -> int:
        return 3

    nvml = RecordedNvml(nvmlDeviceGetName="NVIDIA GB10", nvmlSystemGetCudaDriverVersion_v2=12080)
    nvml.nvmlDeviceGetMemoryInfo_v2 = not_supported  # type: ignore[attr-defined]
    found = described(NvmlDevice(nvml, ctypes.c_void_p()))
    assert found == DeviceFacts("NVIDIA GB10", None, "12.8", None, None, None)


def test_a_gpu_that_the_driver_does_not_know_is_null() -> None:
    assert device_facts("GPU-00000000-0000-0000-0000-000000000000") is None
