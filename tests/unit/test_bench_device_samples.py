"""coldctl.jobs.bench.machine.nvml and device_samples: what NVML answers, read in its layouts and units.

The answers are recorded ones of `nvidia-smi -q -x`, which prints what NVML tells it, put back into NVML's structures:
- RTX A5000, driver 590.44.01: influxdata/telegraf, plugins/inputs/nvidia_smi/testdata/dual_a5000-v13.xml
- A100 in MIG mode, driver 510.47.03, the device and one of its instances: netdata/netdata,
  src/go/plugin/go.d/collector/nvidia_smi/testdata/a100-sxm4-mig.xml
The library here is a stand-in, but called through ctypes as the real one is: its functions get addresses and write
bytes, by the layouts in NVIDIA's NVML API reference. (tests/gpu/test_bench_memory.py asks the real one.)
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.machine import device_samples, nvml
from coldctl.jobs.bench.machine.device_samples import DeviceSampler, sample
from coldctl.results.bench import DeviceSample

MIB = 1 << 20
SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, VERSION_MISMATCH = 0, 2, 3, 6, 9, 25


@dataclass
class Recorded:
    """One device's answers in NVML's units; None is NVML_ERROR_NOT_SUPPORTED (nvidia-smi: N/A)."""

    uuid: str
    total_reserved_free_used_mib: tuple[int, int, int, int] | None
    utilisation_percent: tuple[int, int] | None
    sent_kilobytes_per_second: int | None
    received_kilobytes_per_second: int | None
    power_milliwatts: int | None


A5000 = Recorded("GPU-12345678-aaaa-bbbb-cccc-0123456789ab", (24564, 450, 1678, 22437), (0, 0), 488, 439, 6410)
A100_WITH_MIG = Recorded("GPU-27b94a00-ed54-5c24-b1fd-1054085de32a", (40960, 605, 40315, 38), None, 0, 0, 66920)
MIG_INSTANCE = Recorded("MIG-00000000-0000-5000-8000-000000000001", (19968, 0, 19948, 19), None, None, None, None)
BUSY = Recorded(
    "GPU-00000000-0000-0000-0000-0000000000ff", (143771, 600, 71171, 72000), (37, 12), 250, 53_125_000, 212_345
)


def wrapped(*arguments: Any) -> Callable[[Callable[..., int]], Any]:
    """A C function of these arguments that returns an nvmlReturn_t."""
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)


class Library:
    """libnvidia-ml.so.1 with the devices `recorded`; a handle is a device's position plus one."""

    def __init__(self, *recorded: Recorded, started: int = SUCCESS) -> None:
        self.open = 0
        address, text = ctypes.c_void_p, ctypes.c_char_p

        @wrapped()
        def start() -> int:
            self.open += started == SUCCESS
            return started

        @wrapped()
        def stop() -> int:
            self.open -= 1
            return SUCCESS

        @wrapped(text, address)
        def find(uuid: bytes, handle: int) -> int:
            uuids = [each.uuid.encode() for each in recorded]
            if uuid not in uuids:
                return NOT_FOUND
            ctypes.memmove(handle, struct.pack("@P", uuids.index(uuid) + 1), 8)
            return SUCCESS

        @wrapped(address, address)
        def memory(handle: int, to: int) -> int:
            """unsigned int version; unsigned long long total, reserved, free, used (natural alignment: 40 bytes)."""
            (version,) = struct.unpack("=I", ctypes.string_at(to, 4))
            if version != 40 | 2 << 24:
                return VERSION_MISMATCH
            told = recorded[handle - 1].total_reserved_free_used_mib
            return answer(to + 8, told and struct.pack("=4Q", *(mib * MIB for mib in told)))

        @wrapped(address, address)
        def utilisation(handle: int, to: int) -> int:
            """unsigned int gpu, memory."""
            told = recorded[handle - 1].utilisation_percent
            return answer(to, told and struct.pack("=2I", *told))

        @wrapped(address, ctypes.c_int, address)
        def pcie(handle: int, counter: int, to: int) -> int:
            device = recorded[handle - 1]
            directions = {0: device.sent_kilobytes_per_second, 1: device.received_kilobytes_per_second}
            return number(to, directions[counter]) if counter in directions else INVALID_ARGUMENT

        @wrapped(address, address)
        def power(handle: int, to: int) -> int:
            return number(to, recorded[handle - 1].power_milliwatts)

        def number(to: int, told: int | None) -> int:
            return answer(to, None if told is None else struct.pack("=I", told))

        def answer(to: int, told: bytes | None) -> int:
            if not told:
                return NOT_SUPPORTED
            ctypes.memmove(to, told, len(told))
            return SUCCESS

        def error_text(result: int) -> bytes:
            return {DRIVER_NOT_LOADED: b"Driver Not Loaded"}[result]

        self.nvmlInit_v2 = start
        self.nvmlShutdown = stop
        self.nvmlDeviceGetHandleByUUID = find
        self.nvmlDeviceGetMemoryInfo_v2 = memory
        self.nvmlDeviceGetUtilizationRates = utilisation
        self.nvmlDeviceGetPcieThroughput = pcie
        self.nvmlDeviceGetPowerUsage = power
        self.nvmlErrorString = error_text


def sampled(monkeypatch: pytest.MonkeyPatch, library: Library, uuid: str) -> DeviceSample:
    monkeypatch.setattr(nvml, "load_nvml", lambda: library)
    with nvml.opened(uuid) as device:
        assert library.open == 1
        return sample(device, 1.5)


def test_what_nvml_tells_of_a_device_is_read_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(A100_WITH_MIG, A5000)
    assert sampled(monkeypatch, library, A5000.uuid) == DeviceSample(
        seconds=1.5,
        used_bytes=23_526_899_712,  # 22437 MiB, the driver's 450 MiB not among them
        utilisation_share=0.0,
        memory_utilisation_share=0.0,
        pcie_received_bytes_per_second=439_000.0,
        pcie_sent_bytes_per_second=488_000.0,
        power_watts=6.41,
    )
    assert library.open == 0


def test_directions_and_kinds_of_utilisation_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = sampled(monkeypatch, Library(BUSY), BUSY.uuid)
    assert (busy.utilisation_share, busy.memory_utilisation_share) == (0.37, 0.12)
    assert busy.pcie_received_bytes_per_second == 53.125e9
    assert busy.pcie_sent_bytes_per_second == 250e3
    assert busy.power_watts == 212.345


def test_a_device_in_mig_mode_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampled(monkeypatch, Library(A5000, A100_WITH_MIG, MIG_INSTANCE), A100_WITH_MIG.uuid)
    assert (whole.used_bytes, whole.power_watts) == (38 * MIB, 66.92)
    assert (whole.utilisation_share, whole.memory_utilisation_share) == (None, None)
    assert (whole.pcie_received_bytes_per_second, whole.pcie_sent_bytes_per_second) == (0.0, 0.0)


def test_an_instance_has_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = sampled(monkeypatch, Library(A100_WITH_MIG, MIG_INSTANCE), MIG_INSTANCE.uuid)
    assert instance == DeviceSample(1.5, 19 * MIB, None, None, None, None, None)


@pytest.mark.parametrize("recorded", [A5000, MIG_INSTANCE])
def test_devices_are_found_by_the_uuid_that_torch_tells(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    bare = recorded.uuid.partition("-")[2]
    told = recorded.total_reserved_free_used_mib
    assert told is not None
    assert sampled(monkeypatch, Library(A100_WITH_MIG, A5000, MIG_INSTANCE), bare).used_bytes == told[3] * MIB


def test_what_an_older_driver_does_not_have_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(A5000)
    del library.nvmlDeviceGetMemoryInfo_v2
    older = sampled(monkeypatch, library, A5000.uuid)
    assert (older.used_bytes, older.power_watts) == (None, 6.41)


def test_a_device_that_is_not_there_is_named_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(A100_WITH_MIG)
    with pytest.raises(EnvironmentLacksError, match=A5000.uuid):
        sampled(monkeypatch, library, A5000.uuid)
    assert library.open == 0


def test_samples_come_while_the_block_runs_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(A5000)
    monkeypatch.setattr(nvml, "load_nvml", lambda: library)
    before = time.monotonic()
    with DeviceSampler(A5000.uuid, every_seconds=0.001) as sampler:
        while len(sampler.samples) < 4:
            assert time.monotonic() < before + 60, "no four samples within a minute"
            time.sleep(0.001)
    lasted_seconds = time.monotonic() - before
    taken = sampler.samples
    seconds = [each.seconds for each in taken]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] <= lasted_seconds
    assert {each.used_bytes for each in taken} == {22437 * MIB}
    assert sampler.reason is None
    assert library.open == 0
    time.sleep(0.01)
    assert sampler.samples == taken


def test_unless_somebody_says_otherwise_there_is_one_sample_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float | None] = []

    class Noting(Event):
        """Pauses are noted, and shortened."""

        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return super().wait(0.001)

    monkeypatch.setattr(nvml, "load_nvml", lambda: Library(A5000))
    monkeypatch.setattr(device_samples, "Event", Noting)
    before = time.monotonic()
    with DeviceSampler(A5000.uuid) as sampler:
        while len(pauses) < 3:
            assert time.monotonic() < before + 60, "no three samples within a minute"
            time.sleep(0.001)
    assert set(pauses) == {1.0}
    assert len(pauses) == len(sampler.samples)


def test_an_error_in_the_block_comes_through_and_ends_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(A5000)
    monkeypatch.setattr(nvml, "load_nvml", lambda: library)
    with pytest.raises(ZeroDivisionError), DeviceSampler(A5000.uuid):
        _ = 1 / 0
    assert library.open == 0


def test_without_the_library_there_is_a_reason_and_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARY", "libnvidia-ml-that-nobody-has.so.1")
    with DeviceSampler(A5000.uuid) as sampler:
        pass
    assert sampler.samples == ()
    assert "libnvidia-ml-that-nobody-has.so.1 cannot be loaded" in str(sampler.reason)


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (Library(started=DRIVER_NOT_LOADED), "NVIDIA's driver does not answer: Driver Not Loaded"),
        (Library(A100_WITH_MIG), f"NVML finds no device with the UUID {A5000.uuid}"),
    ],
)
def test_a_driver_or_a_device_that_is_not_there_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, library: Library, reason: str
) -> None:
    monkeypatch.setattr(nvml, "load_nvml", lambda: library)
    with DeviceSampler(A5000.uuid) as sampler:
        pass
    assert (sampler.samples, sampler.reason, library.open) == ((), reason, 0)
