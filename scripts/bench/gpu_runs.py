"""Loads into the memory of one CUDA device, in this process: the ways to do it, and their rounds from one folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.child.content import content_sum
from coldctl.jobs.bench.machine.device_facts import device_facts
from coldctl.jobs.bench.machine.device_samples import device_uuid
from scripts.bench.child import Sample
from scripts.bench.host_loaders import shards
from scripts.bench.pairs import interleave

Load = Callable[[Path, str], Mapping[str, Any]]
"""Takes the checkpoint's folder and the device's name, and returns the tensors."""


def coldctl_load(**options: Any) -> Load:
    def load(folder: Path, device: str) -> Mapping[str, Any]:
        from coldctl import open as open_checkpoint

        with open_checkpoint(folder) as checkpoint:
            loaded: Mapping[str, Any] = checkpoint.load(device=device, **options)
            return loaded

    return load


def safetensors_load(folder: Path, device: str) -> Mapping[str, Any]:
    return peers.safetensors()(shards(folder), device).tensors


LOADERS: dict[str, Load] = {
    "auto": coldctl_load(mode="auto"),
    "auto, verified": coldctl_load(mode="auto", verify=True),
    "ring": coldctl_load(mode="ring"),
    "ring, lanes": coldctl_load(mode="ring", lanes=True),
    "direct": coldctl_load(mode="direct"),
    "mapped": coldctl_load(mode="mapped"),
    "per-tensor": coldctl_load(mode="per-tensor"),
    "gds": coldctl_load(mode="gds"),
    "safetensors": safetensors_load,
}


class Runs:
    """Rounds of loads, state by state (tmpfs, cold, warm), each with its samples and the bytes of one load.

    `impossible` holds why a load was left out, `wrong` those whose bytes were not the files', and `reports` what
    coldctl said of the last load of each kind.
    """

    def __init__(self, device: str, rounds: int, seconds: float) -> None:
        self.samples: dict[str, dict[str, list[Sample]]] = {}
        self.nbytes: dict[str, int] = {}
        self.impossible: dict[str, str] = {}
        self.wrong: list[str] = []
        self.reports: dict[str, Any] = {}
        self._device = device
        self._rounds = rounds
        self._until_seconds = time.monotonic() + seconds

    def measure(self, state: str, folder: Path, names: Iterable[str], prepare: Callable[[], None]) -> None:
        expected = content_sum(safetensors_load(folder, "cpu"))
        possible = [name for name in names if self._try(state, folder, name, prepare, expected)]

        def contender(name: str) -> Callable[[], Sample]:
            return lambda: self._load(state, folder, name, prepare)[0]

        contenders = {name: contender(name) for name in possible}
        self.samples[state] = interleave(contenders, self._rounds, until_seconds=self._until_seconds)

    def median_seconds(self, state: str, name: str) -> float | None:
        """None where the load was left out."""
        samples = self.samples[state].get(name)
        return median(sample.seconds for sample in samples) if samples else None

    def _try(self, state: str, folder: Path, name: str, prepare: Callable[[], None], expected: int) -> bool:
        """One load that does not count, its bytes compared with the files'. Whatever goes wrong, the others go on."""
        try:
            _, tensors = self._load(state, folder, name, prepare)
            if content_sum(tensors) == expected:
                return True
            self.wrong.append(f"{state}: {name}")
        except Exception as error:
            self.impossible[f"{state}: {name}"] = f"{type(error).__name__}: {error}"
        return False

    def _load(
        self, state: str, folder: Path, name: str, prepare: Callable[[], None]
    ) -> tuple[Sample, Mapping[str, Any]]:
        """One load, until the device has every byte. It begins with nothing in torch's cache of device memory."""
        import torch

        prepare()
        torch.cuda.empty_cache()
        torch.cuda.synchronize(self._device)
        start, cpu_start = time.perf_counter(), time.process_time()
        tensors = LOADERS[name](folder, self._device)
        torch.cuda.synchronize(self._device)
        sample = Sample(time.perf_counter() - start, time.process_time() - cpu_start)
        self.nbytes[state] = sum(tensor.nbytes for tensor in tensors.values())
        if report := getattr(tensors, "report", None):
            self.reports[f"{state}: {name}"] = asdict(report)
        return sample, tensors


def lacks_cuda() -> str | None:
    """What is missing for a load into a CUDA device, if anything is."""
    try:
        import torch
    except ImportError as error:
        return f"cannot import torch ({error})"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


def gpu(device: str) -> dict[str, object]:
    """For the machine's description: the device, its driver, and torch's CUDA."""
    import torch

    facts = device_facts(device_uuid(device))
    name, driver = (facts.name, facts.driver) if facts else (torch.cuda.get_device_name(device), None)
    return {"gpu": name, "driver": driver, "cuda": torch.version.cuda}
