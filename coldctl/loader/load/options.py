"""What a load can be asked for, and which of it makes sense together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, TypedDict, get_args

from coldctl.errors import UsageError
from coldctl.events import NULL, Events
from coldctl.loader.load.allowed import (
    Allowed,
    are,
    is_device,
    is_number,
    is_part,
    is_transform,
    one_of,
    or_none,
    require,
    whole,
)
from coldctl.loader.load.transform import Transform
from coldctl.loader.order import ORDERS, Order
from coldctl.units import MIB

Alloc = Literal["arena", "per-tensor", "map"]
HostMode = Literal["auto", "buffered", "direct"]
DeviceMode = Literal["auto", "ring", "direct", "mapped", "per-tensor", "gds"]
Mode = Literal["auto", "buffered", "direct", "ring", "mapped", "per-tensor", "gds"]
Framework = Literal["auto", "torch", "numpy"]
Part = tuple[int, int]
"""(i, n): the ith of n, from 0."""

Split = Literal["tp", "stage", "experts"]

_MOST_READERS = 1 << 15
_MOST_BYTES = 1 << 40
_LEAST_SLOTS = 2


class LoadOptions(TypedDict, total=False):
    """The options of `load` and `stream`; `Settings` has their defaults and meaning."""

    order: Order
    alloc: Alloc
    mode: Mode
    framework: Framework
    names: Iterable[str] | None
    edges_last: bool
    lanes: bool
    tp: Part | None
    stage: Part | None
    experts: Part | None
    verify: bool
    exact: bool
    transform: Transform | None
    readers: int | None
    chunk_bytes: int
    ring_bytes: int
    deadline_seconds: float
    bus_threshold: float
    events: Events


_FLAG = Allowed("True or False", lambda value: isinstance(value, bool))
_PART = or_none(Allowed("(i, n), the ith of n from 0", is_part))
_DEVICES = Allowed("a list of devices, one at least", lambda value: are(is_device)(value) and len(value) > 0)

ALLOWED: Mapping[str, Allowed] = {
    "device": Allowed("cpu, cuda or cuda:N", is_device),
    "devices": or_none(_DEVICES),
    "split": or_none(one_of(get_args(Split))),
    "first_layers": or_none(whole("a number of layers, 0 or more", 0)),
    "order": one_of(ORDERS),
    "alloc": one_of(get_args(Alloc)),
    "mode": one_of(get_args(Mode)),
    "framework": one_of(get_args(Framework)),
    "names": or_none(Allowed("a list of names", are(lambda value: isinstance(value, str)))),
    "edges_last": _FLAG,
    "lanes": _FLAG,
    "tp": _PART,
    "stage": _PART,
    "experts": _PART,
    "verify": _FLAG,
    "exact": _FLAG,
    "transform": or_none(Allowed("an object such as coldctl.Dequantise()", is_transform)),
    "readers": or_none(whole(f"a number of threads, 1 or more and at most {_MOST_READERS}", 1, _MOST_READERS)),
    "chunk_bytes": whole("whole MiB in bytes, at least one and at most a TiB", MIB, _MOST_BYTES, step=MIB),
    "ring_bytes": whole("a number of bytes, at most a TiB", 0, _MOST_BYTES),
    "deadline_seconds": Allowed("a number of seconds over 0", lambda value: is_number(value) and value > 0),
    "bus_threshold": Allowed("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1),
    "events": Allowed("an object of coldctl.events.Events", lambda value: isinstance(value, Events)),
}
"""Of `load` and `stream`, by name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one load.

    - `order`: `file` (by offset) and `name`, both shard by shard, `layers` or `attention-first`, across shards; which
      bytes are read first, and the order of the names in the result.
    - `alloc`: `arena` is one allocation that all tensors are views of; `per-tensor` one for each, as plain loaders do
      it; `map` (host only) none: read-only views of the mapped files. Writing to such a torch tensor, or reading one
      when the file has shrunk, kills the process.
    - `mode`: how bytes come. On the host `buffered` (through the page cache), `direct` (O_DIRECT, ends buffered) or
      `auto`: for each range by what is resident, and for what is not by measuring which is faster. On a GPU `ring`
      (buffered into pinned slots), `direct` (O_DIRECT into them), `mapped` (registered windows on the files),
      `per-tensor` (plain copies, the baseline), `gds`, or `auto`: the ring, each range read either way as on the host,
      and plain copies for the rest when the bus stays slow. Of a file that shrinks, `mapped` opens no window on what is
      gone (ChangedError), but one that is open is memory like that of `map`: it may kill the process.
    - `framework`: `torch` or `numpy` tensors; `auto` is torch where it is installed. On a GPU always torch.
    - `names`: only these tensors, and None all. Fillers are never loaded.
    - `edges_last`: embedding and head come after all else.
    - `lanes` (modes ring, direct and auto on a GPU): q, k, v and all else on four streams.
    - `tp`, `stage`, `experts`: the share of one of several devices, as `coldctl.loader.load.share` defines it.
    - `verify`: recompute block sums in memory, and compare them with the manifest or else with the files; `exact`:
      compare every byte with the files. Both together do both.
    - `transform`: see `coldctl.loader.load.transform`.
    - `readers`: how many threads read; None is as many as pay. One for `per-tensor`, and none for what is mapped warm.
    - `chunk_bytes`: the most that one of them reads at a time into an arena; on a GPU (modes auto, ring and direct) the
      size of a pinned slot. `ring_bytes` (there): of all slots together.
    - `deadline_seconds` (auto, ring, direct and mapped on a GPU): how long a copy may take before the load fails. Plain
      copies know neither it nor a stop: the driver does one within a single call, which nothing ends before its time.
      Plain are all of per-tensor and gds, those of gathered tensors with mapped, and auto's once the bus was slow.
    - `bus_threshold`: the share of the calibrated rate of the bus under which mode auto falls back to plain copies.
    - `events`: progress, and a way to stop (`coldctl.events`).
    """

    order: Order = "file"
    alloc: Alloc = "arena"
    mode: Mode = "auto"
    framework: Framework = "auto"
    names: Iterable[str] | None = None
    edges_last: bool = False
    lanes: bool = False
    tp: Part | None = None
    stage: Part | None = None
    experts: Part | None = None
    verify: bool = False
    exact: bool = False
    transform: Transform | None = None
    readers: int | None = None
    chunk_bytes: int = 8 * MIB
    ring_bytes: int = 128 * MIB
    deadline_seconds: float = 60.0
    bus_threshold: float = 0.5
    events: Events = NULL

    @property
    def slots(self) -> int:
        return self.ring_bytes // self.chunk_bytes

    @property
    def checks(self) -> bool:
        """Whether what is loaded is checked, in one way or the other."""
        return self.verify or self.exact

    def check(self, *, on_device: bool) -> None:
        """Raise UsageError for options that do not exist, or that make no sense together."""
        for each in fields(self):
            require(each.name, getattr(self, each.name), ALLOWED[each.name])
        modes = get_args(DeviceMode if on_device else HostMode)
        require(f"mode on {'a device' if on_device else 'the host'}", self.mode, one_of(modes))
        if self.transform is not None and self.framework == "numpy":
            raise UsageError("a transform works on torch tensors", hint='use framework "torch"')
        if on_device:
            self._check_device()
        else:
            self._check_host()

    def _check_host(self) -> None:
        if self.lanes:
            raise UsageError("lanes are streams of a device, and the host has none")
        if self.alloc == "map" and (self.mode != "auto" or self.tp is not None):
            raise UsageError(
                'alloc="map" reads nothing, so it takes no mode, and no tp, which gathers', hint="use arena"
            )
        if self.alloc == "per-tensor" and self.mode == "direct":
            raise UsageError("direct reads need an arena, where tensors lie as in the file", hint='use alloc="arena"')

    def _check_device(self) -> None:
        if self.slots < _LEAST_SLOTS:
            raise UsageError(f"ring_bytes is {self.ring_bytes}, expected at least two chunks of {self.chunk_bytes}")
        if self.framework == "numpy":
            raise UsageError("numpy has no tensors on a device", hint='use framework "torch"')
        if self.alloc == "map":
            raise UsageError('alloc="map" is for the host', hint='mode="mapped" copies from the mapped files')
        if self.alloc == "per-tensor" and self.mode not in ("auto", "per-tensor"):
            raise UsageError(
                f'mode "{self.mode}" fills one arena', hint='alloc="per-tensor" goes with mode "per-tensor"'
            )
        if self.lanes and (self.mode not in ("auto", "ring", "direct") or self.alloc == "per-tensor"):
            raise UsageError(f'mode "{self.mode}" has one stream', hint="lanes go with modes auto, ring and direct")


def settings_of(options: LoadOptions) -> Settings:
    """Raises UsageError for an option that does not exist."""
    known = {each.name for each in fields(Settings)}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"no such option: {', '.join(unknown)}", hint=f"one of {', '.join(sorted(known))}")
    settings = Settings(**options)
    names = settings.names
    if isinstance(names, Iterable) and not isinstance(names, str):
        return replace(settings, names=tuple(names))  # gone through once here, since not all can be twice
    return settings
