"""One load on one device: a plan made into batches, each placed, allocated, filled, checked and viewed.

A whole load is one batch in one or two parts (`first_layers`); a stream is many batches on the same engine.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from coldctl.errors import ColdctlError, from_os_error
from coldctl.loader.device.cuda_errors import translated
from coldctl.loader.device.gds_engine import GdsEngine
from coldctl.loader.device.mapped_engine import MappedEngine
from coldctl.loader.device.protocol import Device
from coldctl.loader.device.ring_engine import RingEngine
from coldctl.loader.load import host
from coldctl.loader.load.arrivals import Arrivals
from coldctl.loader.load.batch import Batch
from coldctl.loader.load.choice import LANES, choose, io_of
from coldctl.loader.load.collector import collector_paused
from coldctl.loader.load.engine import Engine
from coldctl.loader.load.integrity import Expected, check
from coldctl.loader.load.mapping_engine import MappingEngine
from coldctl.loader.load.memory import ArenaMemory, MappedMemory, Memory, OwnMemory
from coldctl.loader.load.options import Settings
from coldctl.loader.load.per_tensor import PerTensorEngine
from coldctl.loader.load.place import Placed, Placement, place
from coldctl.loader.load.route import Routes
from coldctl.loader.load.stages import Stages
from coldctl.loader.load.tensors import resolve_framework
from coldctl.loader.load.transfers import Transfer, alone, transfers
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.order import Layers
from coldctl.loader.roles import lane_of
from coldctl.loader.scratch import shortage
from coldctl.results.load import IntegrityFacts


class Prepared(NamedTuple):
    """A batch with its memory, its transfers cut into `parts` that can be run one after the other."""

    batch: Batch
    memory: Memory
    placement: Placement
    parts: tuple[Sequence[Transfer], ...]
    bounds: tuple[range, ...]


class Session:
    """An engine on a device, for as many batches as are asked for. `expected` are the manifest's block sums.

    Raises what `choose` raises; closed, it holds no memory but that of the tensors that were handed out.
    """

    def __init__(
        self,
        settings: Settings,
        device: Device | None,
        layers: Callable[[], Layers],
        expected: Callable[[], Expected],
    ) -> None:
        self.numpy = device is None and resolve_framework(settings.framework) == "numpy"
        self.stages = Stages()  # after torch was imported, which is no part of a load
        self.notes: list[str] = []
        self.arena_bytes = 0
        self.integrity: list[IntegrityFacts] = []
        self.settings = settings
        self.device = device
        self._layers = layers
        self._expected = expected
        self.routes = Routes(io_of(settings))
        with self.stages.timed("pin" if device else "plan"):
            self.engine: Engine
            self.engine, self._chunk_bytes = self._choose()

    def _choose(self) -> tuple[Engine, int]:
        try:
            return choose(self.settings, self.device, self.routes, self.settings.events)
        except ColdctlError as error:
            error.locate(stage="pin")
            raise

    def prepare(self, wanted: Sequence[Wanted], first: int = 0) -> Prepared:
        """A batch of `wanted`, in one part, or in two where `first` of them come before the rest."""
        with shortage(stage="allocate"):
            return self._prepared(wanted, first)

    def _prepared(self, wanted: Sequence[Wanted], first: int) -> Prepared:
        with self.stages.timed("plan"), collector_paused():
            bounds = tuple(part for part in (range(first), range(first, len(wanted))) if part)
            if isinstance(self.engine, MappingEngine):
                self._map_or_read(wanted)
            lanes = [LANES.index(lane_of(each.name)) for each in wanted] if self.settings.lanes else None
            own = isinstance(self.engine, PerTensorEngine)
            placement = Placement(wanted, [0] * len(wanted), 0, ()) if own else place(wanted)
        arena = self._allocate(placement)  # before the cutting, which for what is far too large would take long
        with self.stages.timed("plan"), collector_paused():
            parts = self._cut(placement, bounds, lanes, own=own)
        if isinstance(self.engine, GdsEngine):
            self.engine.refuse_without_pages(each for part in parts for each in part)
        arrivals = Arrivals(len(wanted), [each for part in parts for each in part])
        batch = Batch(wanted, arena, (), arrivals, lanes, self._attention(wanted), self.settings.readers)
        return Prepared(batch, self._memory(placement, arena), placement, parts, bounds)

    def _map_or_read(self, wanted: Sequence[Wanted]) -> None:
        """Map the files; where the process has no addresses left, or they cannot be mapped, read them instead."""
        engine = self.engine
        assert isinstance(engine, MappingEngine)
        try:
            engine.map(wanted)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENODEV):
                refused = from_os_error(error, "map", wanted[0].source.name)
                refused.locate(stage="allocate", file=wanted[0].source.name, tensor=wanted[0].name)
                raise refused from error
            engine.close()
            self.notes.append(f"the files could not be mapped ({error.strerror}), so they were read")
            self.engine = host.HostEngine(self.routes, self.settings.events)
            self._chunk_bytes = self.settings.chunk_bytes

    def _cut(
        self, placement: Placement, bounds: Sequence[range], lanes: Sequence[int] | None, *, own: bool
    ) -> tuple[Sequence[Transfer], ...]:
        if own:
            return tuple([alone(placement.wanted[number], number) for number in part] for part in bounds)
        starts = {part.start for part in bounds}
        if lanes:
            starts |= {number for number in range(1, len(lanes)) if lanes[number] != lanes[number - 1]}
        cut = list(transfers(placement, self._chunk_bytes, sorted(starts)))
        return tuple([each for each in cut if each.first in part] for part in bounds)

    def _attention(self, wanted: Sequence[Wanted]) -> dict[int, int]:
        """The layer of each attention tensor by its number: needed for events between lanes, and dear for 90,000."""
        if not self.settings.lanes:
            return {}
        layers = self._layers()
        return {n: layers.position(each.name) for n, each in enumerate(wanted) if layers.is_attention(each.name)}

    def _allocate(self, placement: Placement) -> Any:
        nbytes = placement.arena_bytes
        if isinstance(self.engine, PerTensorEngine | MappingEngine):
            return None
        with self.stages.timed("allocate", nbytes):
            try:
                arena = self.device.allocate(nbytes) if self.device else host.allocate(nbytes)
            except ColdctlError as error:
                error.locate(stage="allocate")
                raise
        self.arena_bytes += nbytes
        return arena

    def _memory(self, placement: Placement, arena: Any) -> Memory:
        wanted = placement.wanted
        if isinstance(self.engine, PerTensorEngine):
            self.engine.memory = {}
            return OwnMemory(self.engine.memory, wanted, numpy=self.numpy)
        if isinstance(self.engine, MappingEngine):
            return MappedMemory(self.engine.maps, wanted, numpy=self.numpy)
        return ArenaMemory(arena, placement, numpy=self.numpy)

    def run(self, prepared: Prepared, part: int) -> None:
        """Load one part, and check it where that was asked for."""
        nbytes = sum(each.nbytes for each in prepared.parts[part])
        self.settings.events.begin("loading", nbytes)
        try:
            with shortage(stage="read"):
                self.engine.run(prepared.batch._replace(transfers=prepared.parts[part]))
        finally:
            self.settings.events.end()
        if self.settings.checks:
            with self.stages.timed("verify", nbytes), shortage(stage="verify"):
                self._check(prepared, prepared.bounds[part])

    def _check(self, prepared: Prepared, numbers: range) -> None:
        """By block sums, and by every byte: what was asked for, and both where both were."""
        for exact in (False, True):
            if not (self.settings.exact if exact else self.settings.verify):
                continue
            for memory, placed in self._checkable(prepared, numbers):
                self.integrity.append(self._checked(memory, placed, exact))

    def _checked(self, memory: Any, placed: Sequence[Placed], exact: bool) -> IntegrityFacts:
        try:
            with translated("check what is in memory") if self.device else nullcontext():
                return check(
                    placed,
                    memory,
                    expected=self.expected(),
                    device=self.device,
                    exact=exact,
                    events=self.settings.events,
                )
        except ColdctlError as error:
            error.locate(stage="verify")
            raise

    def expected(self) -> Expected:
        """The block sums in the manifest. Raises what `Expected.beside` does of one that cannot be used."""
        try:
            return self._expected()
        except ColdctlError as error:
            error.locate(stage="verify")
            raise

    def _checkable(self, prepared: Prepared, numbers: range) -> Iterable[tuple[Any, list[Placed]]]:
        """Each memory with what stands in it: tensors of one mapped file, or all of an arena."""
        wanted, arena = prepared.batch.wanted, prepared.batch.arena
        if isinstance(self.engine, PerTensorEngine):
            for number in numbers:
                yield self.engine.memory[number], [Placed(wanted[number], 0)]
        elif isinstance(self.engine, MappingEngine):
            for key, mapping in self.engine.maps.items():
                among = [wanted[number] for number in numbers if id(wanted[number].source) == key]
                yield mapping.numpy_bytes(), [Placed(each, each.offset_bytes) for each in among]
        else:
            memory = np.asarray(arena) if self.device is None else arena
            yield memory, [Placed(wanted[number], prepared.placement.at_bytes[number]) for number in numbers]

    def finish(self) -> None:
        """Add what the engine did to the stages."""
        engine = self.engine
        read = [each.interval for reader in engine.reads.by_reader for each in reader]
        self.stages.add("read", read, engine.reads.read_bytes)
        if isinstance(engine, RingEngine | MappedEngine):
            copies = engine.copies
            moved = [(copies.begun_seconds + begin, copies.begun_seconds + end) for begin, end in copies.intervals]
            self.stages.add("h2d", moved, copies.bytes)
        if isinstance(engine, RingEngine | MappedEngine | GdsEngine | PerTensorEngine):
            self.stages.add("h2d", [each.interval for each in engine.plain.done], engine.plain.bytes)

    def settle(self) -> None:
        """Wait for what transforms had the device do: whoever gets their tensors may be on another stream."""
        if self.device and self.settings.transform:
            self.device.settle()

    def close(self) -> None:
        self.engine.close()
        self.routes.close()
