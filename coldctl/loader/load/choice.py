"""Which engine does a load, by its device, its allocation and its mode."""

from __future__ import annotations

from coldctl.events import Events
from coldctl.loader.device.gds_engine import CHUNK_BYTES as GDS_CHUNK_BYTES
from coldctl.loader.device.gds_engine import GdsEngine
from coldctl.loader.device.mapped_engine import CHUNK_BYTES as WINDOW_BYTES
from coldctl.loader.device.mapped_engine import MappedEngine
from coldctl.loader.device.protocol import Device
from coldctl.loader.device.ring_engine import RingEngine
from coldctl.loader.load.engine import Engine
from coldctl.loader.load.host import HostEngine
from coldctl.loader.load.mapping_engine import CHUNK_BYTES as MAPPED_CHUNK_BYTES
from coldctl.loader.load.mapping_engine import MappingEngine
from coldctl.loader.load.options import Settings
from coldctl.loader.load.per_tensor import PerTensorEngine
from coldctl.loader.load.route import Io, Routes

LANES = ("q", "k", "v", "rest")


def open_device(device: str | Device) -> Device | None:
    """None for the host (`cpu`), or the device of that name. Raises EnvironmentLacksError when it is not there."""
    if not isinstance(device, str):
        return device
    if device == "cpu":
        return None
    from coldctl.loader.device.cuda import open_cuda

    return open_cuda(device)


def io_of(settings: Settings) -> Io:
    """How the files are read: `mode` says it for the engines that read."""
    if settings.mode in ("auto", "direct"):
        return "auto" if settings.mode == "auto" else "direct"
    return "buffered"


def choose(settings: Settings, device: Device | None, routes: Routes, events: Events) -> tuple[Engine, int]:
    """The engine, and the most that one of its transfers may span, in bytes.

    Raises EnvironmentLacksError for a mode that the device does not have, and PinError; nothing stands in for a mode
    that was asked for.
    """
    if settings.alloc == "per-tensor" or settings.mode == "per-tensor":
        return PerTensorEngine(device, routes, events), 0
    if device is None:
        if settings.alloc == "map":
            return MappingEngine(routes, events), MAPPED_CHUNK_BYTES
        return HostEngine(routes, events), settings.chunk_bytes
    if settings.mode == "mapped":
        return MappedEngine(device, routes, events, deadline_seconds=settings.deadline_seconds), WINDOW_BYTES
    if settings.mode == "gds":
        return GdsEngine(device, routes, events), GDS_CHUNK_BYTES
    ring = RingEngine(
        device,
        routes,
        events,
        slot_bytes=settings.chunk_bytes,
        slots=settings.slots,
        deadline_seconds=settings.deadline_seconds,
        lanes=len(LANES) if settings.lanes else 1,
        bus_threshold=settings.bus_threshold if settings.mode == "auto" else None,
    )
    return ring, ring.chunk_bytes
