"""A checkpoint opened for loading: `coldctl.open`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, Unpack, overload

from coldctl.errors import UsageError
from coldctl.loader.device.protocol import Device
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.loader.format.header import Tensor as TensorInfo
from coldctl.loader.format.layout import is_filler
from coldctl.loader.load.allowed import require
from coldctl.loader.load.choice import open_device
from coldctl.loader.load.collector import collector_paused
from coldctl.loader.load.integrity import Expected
from coldctl.loader.load.load import Load
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.loading import Loading
from coldctl.loader.load.options import ALLOWED, LoadOptions, Settings, Split, settings_of
from coldctl.loader.load.several import load_each
from coldctl.loader.load.tensors import Tensor
from coldctl.loader.order import Layers, find_layers

if TYPE_CHECKING:
    import torch

AnyDevice: TypeAlias = "str | torch.device | Device"
"""`cpu`, `cuda` or `cuda:N`, as a str or as torch's own object; or what answers the protocol of devices."""


class OpenCheckpoint:
    """A checkpoint whose headers were read and found sound. Usable from any thread, for any number of loads.

    Leaving the `with` ends its use; tensors that were loaded stay good. Nothing of it is open in between: files are
    opened for each load, and are an error (ChangedError) when they are no longer those whose headers were read.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._closed = False

    def __getstate__(self) -> dict[str, object]:
        """Pickled, it is what was read of the headers; what loads found out since is found out anew."""
        return {"_checkpoint": self._checkpoint, "_closed": self._closed}

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name, dtype, shape, offset and size in bytes of every tensor, fillers left out; shard by shard."""
        return MappingProxyType({each.name: each for each in self._checkpoint.tensors() if not is_filler(each)})

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.nbytes for each in self.tensors.values())

    @property
    def metadata(self) -> Mapping[str, str]:
        """The `__metadata__` of all shards; where two differ, that of the first."""
        united: dict[str, str] = {}
        for shard in reversed(self._checkpoint.shards):
            united |= shard.header.metadata or {}
        return MappingProxyType(united)

    @overload
    def load(
        self,
        device: AnyDevice = ...,
        *,
        first_layers: None = ...,
        devices: None = ...,
        **options: Unpack[LoadOptions],
    ) -> Loaded: ...
    @overload
    def load(
        self, device: AnyDevice = ..., *, first_layers: int, devices: None = ..., **options: Unpack[LoadOptions]
    ) -> Loading: ...
    @overload
    def load(
        self,
        *,
        devices: Sequence[AnyDevice],
        split: Split | None = ...,
        **options: Unpack[LoadOptions],
    ) -> list[Loaded]: ...

    def load(
        self,
        device: AnyDevice = "cpu",
        *,
        first_layers: int | None = None,
        devices: Sequence[AnyDevice] | None = None,
        split: Split | None = None,
        **options: Unpack[LoadOptions],
    ) -> Loaded | Loading | list[Loaded]:
        """Every tensor by name, or an error and nothing.

        `device` is `cpu`, or a GPU as torch spells it (`cuda:0`). On the host, tensors are torch tensors where torch
        is installed, else numpy arrays: bits in unsigned integers for dtypes that numpy has not (BF16, FP8). Elements
        under a byte come as their bytes (uint8): the last dimension counts bytes where a row is a whole number of them,
        and else the shape is flat, [bytes]. All tensors are views on one allocation, unless `alloc` says
        otherwise: so whoever pickles one of them, or writes it with torch.save, writes all of that allocation, unless
        it is a clone. The other options stand in `coldctl.loader.load.options.Settings`.

        With `first_layers` this returns as soon as what comes before the layers and that many of them are there, with a
        handle (`Loading`) that knows which they are; a thread brings the rest, and no fork inherits that. With
        `devices` each gets the whole checkpoint, or with `split` (`tp`, `stage` or `experts`) its share of it, all at
        once; the result is a list.

        Success says that every byte came from the files as they were when they were opened, without an error that the
        system reported. That nothing changed on the way is promised only with `verify` or `exact`.

        Raises UsageError, EnvironmentLacksError (no such device, or mode on it), OutOfMemoryError, PinError,
        UnreadableError, InputError (a file or one of `names` that is not there, a scale that does not fit),
        ChangedError, DeviceError (a copy that failed or did not end in time), CorruptedError and FaultError (what
        verifying found), StoppedError; where a tensor is concerned, with `file`, `tensor` and `stage`.
        """
        settings = self._settings(options)
        asked = {"device": device, "devices": devices, "split": split, "first_layers": first_layers}
        for option, value in asked.items():
            require(option, value, ALLOWED[option])
        if devices is not None:
            if first_layers is not None or device != "cpu":
                raise UsageError("devices goes without device and first_layers")
            return load_each(self._load, settings, [self._opened(each, settings) for each in devices], split)
        if split is not None:
            raise UsageError("split goes with devices", hint="for one device give its part: tp=(rank, ranks)")
        opened = self._opened(device, settings)
        if first_layers is None:
            return self._load.whole(settings, opened)
        return self._load.first_layers(_in_layers(settings, options), opened, first_layers)

    def stream(self, device: AnyDevice = "cpu", **options: Unpack[LoadOptions]) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) one after the other in `order`, as they arrive, while a thread loads ahead.

        Takes the options of `load`, and raises what it raises, where the tensor would have come. Memory is that of
        three batches of 256 MiB (or of the largest tensor) as long as the caller drops what it has used; a tensor that
        is kept keeps its batch. A fork does not inherit the thread: there it ends with UsageError.
        """
        settings = self._settings(options)
        require("device", device, ALLOWED["device"])
        return self._load.stream(settings, self._opened(device, settings))

    def _settings(self, options: LoadOptions) -> Settings:
        if self._closed:
            raise UsageError("the checkpoint was closed", hint="load inside the with block")
        return settings_of(options)

    @staticmethod
    def _opened(device: AnyDevice, settings: Settings) -> Device | None:
        named = str(device) if type(device).__module__ == "torch" else device  # a torch.device
        named = "cpu" if named == "cpu:0" else named
        settings.check(on_device=named != "cpu")
        return open_device(named)

    @cached_property
    def _load(self) -> Load:
        return Load(self._checkpoint, lambda: self._layers, lambda: self._expected)

    @cached_property
    def _layers(self) -> Layers:
        return find_layers(self._checkpoint.tensors())

    @cached_property
    def _expected(self) -> Expected:
        return Expected.beside(self._checkpoint.root)

    def close(self) -> None:
        """No load begins after this."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


def open(path: str | os.PathLike[str]) -> OpenCheckpoint:
    """The checkpoint at `path`, a `.safetensors` file or a folder, with its headers read. No tensor's bytes are.

    It stays the same when the process changes its working folder.

    Raises FaultError for the first fault, InputError when there is no checkpoint at `path`, EnvironmentLacksError or
    UnreadableError when something of it cannot be read.
    """
    with collector_paused():
        return OpenCheckpoint(open_checkpoint(os.fsdecode(path)).from_anywhere())


def _in_layers(settings: Settings, options: LoadOptions) -> Settings:
    """The order `layers`, unless another was asked for: it is what first layers come in."""
    from dataclasses import replace

    if settings.edges_last:
        raise UsageError("edges_last would keep the embedding back, which the first layers need")
    return settings if "order" in options else replace(settings, order="layers")
