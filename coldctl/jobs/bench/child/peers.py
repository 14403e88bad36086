"""The loaders that coldctl is compared with, each called as its own documentation says, with its own defaults.

Each function imports what it needs and returns the load itself, so that a clock can start in between. A load takes the
files and the device (`cpu`, `cuda:N`), and returns when its library does: on a device, copies may be under way then.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coldctl.errors import EnvironmentLacksError
from coldctl.jobs.bench.machine.versions import version_of
from coldctl.loader.format.dtypes import BITS
from coldctl.loader.format.header import Tensor as TensorInfo
from coldctl.loader.format.header import read_header
from coldctl.loader.load.tensors import torch_dtype


class Loaded(NamedTuple):
    """Tensors by name, and the object that owns their memory where they do not: both are to be kept."""

    tensors: Mapping[str, Any]
    owner: object = None


Load = Callable[[Sequence[str], str], Loaded]


def safetensors() -> Load:
    """`load_file` of one file after the other."""
    from safetensors.torch import load_file

    def load(files: Sequence[str], device: str) -> Loaded:
        tensors: dict[str, Any] = {}
        for path in files:
            tensors |= load_file(path, device=device)
        return Loaded(tensors)

    return load


def fastsafetensors() -> Load:
    """GDS by default, and what fastsafetensors itself falls back to; on the host there is only `nogds`."""
    from fastsafetensors import fastsafe_open

    def load(files: Sequence[str], device: str) -> Loaded:
        file = fastsafe_open(list(files), device=device, nogds=device == "cpu")
        return Loaded({name: file.get_tensor(name) for name in file.keys()}, owner=file)  # noqa: SIM118

    return load


def runai() -> Load:
    """The tensors are owned by the caller, which has been the streamer's default since 0.17.1: no copy is due."""
    from runai_model_streamer import SafetensorsStreamer

    def load(files: Sequence[str], device: str) -> Loaded:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(list(files), device=device)
            return Loaded(dict(streamer.get_tensors()))

    return load


def instanttensor() -> Load:
    """`copy` is InstantTensor's default since it has the option. Older ones refuse it: what they give is reused."""
    from instanttensor import safe_open

    def load(files: Sequence[str], device: str) -> Loaded:
        with safe_open(list(files), framework="pt", device=device, copy=True) as file:
            return Loaded(dict(file.tensors()))

    return load


def tensorizer() -> Load:
    """Takes files of tensorizer's own format."""
    from tensorizer import TensorDeserializer

    def load(files: Sequence[str], device: str) -> Loaded:
        opened = [TensorDeserializer(path, device=device) for path in files]
        return Loaded({name: file[name] for file in opened for name in file}, owner=opened)

    return load


def torch_alone() -> Load:
    """What code without a loader does: read each file whole, make tensors on its bytes, and move each to the device."""
    import torch

    def load(files: Sequence[str], device: str) -> Loaded:
        tensors: dict[str, Any] = {}
        for path in files:
            data = np.fromfile(path, dtype=np.uint8)
            tensors |= {each.name: tensor(data, each).to(device) for each in read_header(path).tensors}
        return Loaded(tensors)

    def tensor(data: Any, info: TensorInfo) -> Any:
        dtype = torch_dtype(info.dtype)
        if info.nbytes == 0:
            return torch.empty(info.shape, dtype=dtype)
        elements = info.nbytes // dtype.itemsize
        flat = torch.frombuffer(data, dtype=dtype, count=elements, offset=info.offset_bytes)
        return flat if BITS[info.dtype] < 8 else flat.reshape(info.shape)

    return load


class Peer(NamedTuple):
    """`distribution` is what has to be installed; `imported` imports it and returns the load."""

    distribution: str
    imported: Callable[[], Load]


BY_NAME = {
    "safetensors": Peer("safetensors", safetensors),
    "fastsafetensors": Peer("fastsafetensors", fastsafetensors),
    "runai": Peer("runai-model-streamer", runai),
    "instanttensor": Peer("instanttensor", instanttensor),
    "tensorizer": Peer("tensorizer", tensorizer),
    "torch": Peer("torch", torch_alone),
}


def installed(name: str) -> str | None:
    """The version of the peer that is installed; None when it is not. That it can be imported is not tried."""
    return version_of(BY_NAME[name].distribution)


def imported(name: str) -> Load:
    """The peer's load. Raises EnvironmentLacksError when the peer cannot be imported."""
    peer = BY_NAME[name]
    try:
        return peer.imported()
    except ImportError as error:
        hint = f"pip install {peer.distribution}"
        raise EnvironmentLacksError(f"{name} cannot be imported: {error}", hint=hint) from error


def files_read(name: str, files: Sequence[str]) -> tuple[str, ...]:
    """What the peer reads to load the checkpoint that `files` hold: these, or those in its own format beside them."""
    if name != "tensorizer":
        return tuple(files)
    folders = dict.fromkeys(glob.escape(os.path.dirname(path)) for path in files)
    return tuple(path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "*.tensors"))))


def refusal(name: str, files: Sequence[str], device: str) -> str | None:
    """Why the peer cannot load these files to this device, wherever it is installed; None when it can."""
    if name == "instanttensor" and device == "cpu":
        return "instanttensor loads to CUDA devices only"
    if name == "tensorizer" and not files_read(name, files):
        return "tensorizer reads its own format only, and no .tensors file stands beside the checkpoint's"
    return None
