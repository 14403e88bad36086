"""Ways to load one checkpoint into host memory: coldctl's, and those of the loaders that it is compared with.

Each entry of LOADERS imports what it needs and returns the load itself, so that a clock can start in between. A load
takes the checkpoint's folder and returns its tensors, all of them to be kept, and whatever has to stay open for them.
Each is called as its own documentation says, with its own defaults where its name says nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.child.peers import Loaded

TENSORIZER_FILE = "model.tensors"


Load = Callable[[Path], Loaded]


def shards(folder: Path) -> list[str]:
    """The checkpoint's files, in order."""
    return sorted(os.fspath(path) for path in folder.glob("*.safetensors"))


def coldctl(**options: Any) -> Load:
    from coldctl import open as open_checkpoint

    def load(folder: Path) -> Loaded:
        with open_checkpoint(folder) as checkpoint:
            return Loaded(checkpoint.load(device="cpu", **options))

    return load


def safetensors(backend: str) -> Load:
    from safetensors.torch import load_file

    def load(folder: Path) -> Loaded:
        tensors: dict[str, Any] = {}
        for path in shards(folder):
            tensors |= load_file(path, backend=backend)
        return Loaded(tensors)

    return load


def safetensors_by_tensor() -> Load:
    """One call a tensor, as engines do that pick their tensors. (The open file is no mapping: it wants `keys`.)"""
    from safetensors import safe_open

    def load(folder: Path) -> Loaded:
        tensors: dict[str, Any] = {}
        for path in shards(folder):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensors[name] = file.get_tensor(name)
        return Loaded(tensors)

    return load


def fastsafetensors(direct: bool) -> Load:
    os.environ["FASTSAFETENSORS_ODIRECT"] = "1" if direct else "0"
    return of_shards(peers.fastsafetensors())


def runai(strategy: str | None = None) -> Load:
    if strategy:
        os.environ["RUNAI_STREAMER_FS_STRATEGY"] = strategy
    return of_shards(peers.runai())


def of_shards(load: peers.Load) -> Load:
    return lambda folder: load(shards(folder), "cpu")


def tensorizer() -> Load:
    load = peers.tensorizer()
    return lambda folder: load([os.fspath(folder / TENSORIZER_FILE)], "cpu")


class Loader(NamedTuple):
    """`imported` imports and returns the load; `package` is the one that has to be installed for it."""

    package: str
    imported: Callable[[], Load]

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None


LOADERS = {
    "coldctl map": Loader("coldctl", lambda: coldctl(alloc="map")),
    "coldctl arena": Loader("coldctl", lambda: coldctl(alloc="arena")),
    "safetensors mmap": Loader("safetensors", lambda: safetensors("mmap")),
    "safetensors pread": Loader("safetensors", lambda: safetensors("pread")),
    "safetensors by tensor": Loader("safetensors", safetensors_by_tensor),
    "fastsafetensors direct": Loader("fastsafetensors", lambda: fastsafetensors(direct=True)),
    "fastsafetensors buffered": Loader("fastsafetensors", lambda: fastsafetensors(direct=False)),
    "runai direct": Loader("runai_model_streamer", runai),
    "runai buffered": Loader("runai_model_streamer", lambda: runai("sync_buffered")),
    "tensorizer": Loader("tensorizer", tensorizer),
}
