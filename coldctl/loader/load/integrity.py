"""Whether tensors in memory are what the checkpoint holds: by their block sums, or byte by byte."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from coldctl.errors import ColdctlError, CorruptedError, OutOfMemoryError
from coldctl.events import NULL, Events
from coldctl.loader.device.protocol import Device
from coldctl.loader.format import manifest
from coldctl.loader.format.manifest import Manifest
from coldctl.loader.format.rules import fault, finding
from coldctl.loader.load.compare import Memory, compare
from coldctl.loader.load.parts import Part, Parts
from coldctl.loader.load.place import Placed
from coldctl.loader.load.reread import STAGE, file_sums
from coldctl.loader.load.sums import WINDOW_BYTES, Sums, device_sums, host_sums
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.sink import has_sums, sums_in
from coldctl.results.load import IntegrityFacts
from coldctl.units import format_size


class Expected:
    """The block sums in a manifest. `listed` is None where there is none."""

    def __init__(self, listed: Manifest | None) -> None:
        self._listed = {tensor.name: tensor for tensor in listed.tensors} if listed else {}

    @classmethod
    def beside(cls, folder: str) -> Expected:
        """Those in the manifest in `folder`. Raises what `manifest.load` raises of one that cannot be used."""
        return cls(manifest.load(folder))

    def sums(self, wanted: Wanted) -> str | None:
        """Those of `wanted`, as they are written. None for a part of a tensor, and for one that the manifest has not.

        Raises FaultError (`manifest.tensor`) when the manifest has the tensor, but not sums for each block.
        """
        listed, tensor, file = self._listed.get(wanted.name), wanted.tensor, wanted.source.name
        if listed is None or not wanted.whole:
            return None
        place = (tensor.dtype, tensor.shape, file, tensor.offset_bytes, tensor.nbytes)
        if place != (listed.dtype, listed.shape, listed.file, listed.offset_bytes, listed.nbytes):
            return None
        if not has_sums(listed.block_sums, listed.nbytes):
            message = f"{manifest.NAME} has not 32 hex digits of block sums for each 4 MiB of tensor {wanted.name}"
            raise fault(finding("manifest.tensor", message, file=file, tensor=wanted.name))
        return listed.block_sums


def check(
    placed: Iterable[Placed],
    memory: Memory,
    *,
    expected: Expected,
    device: Device | None,
    exact: bool,
    events: Events = NULL,
) -> IntegrityFacts:
    """Hold `placed`, all of whose bytes have arrived in `memory`, against the manifest or else against their files.

    Block sums are computed where the memory is (`device`, or the host for None). Tensors for which `expected` has none
    are read again from their files, and so are all of them with `exact`, which compares every byte: on a device there,
    in 4 MiB of its memory for each thread. Host memory is compared byte by byte whenever the file is read.

    Raises, for the first tensor in the order of `placed` that differs and with the number of others, FaultError
    (`digest.mismatch`) when it is the file that differs from the manifest, and CorruptedError when the file is sound
    and memory is not. Raises FaultError (`manifest.tensor`), OutOfMemoryError, and what `read_again` raises.

    Success by block sums proves nothing about what somebody changed on purpose, and without a manifest nothing about
    the file; where only the manifest was needed, the file has not been read again.
    """
    begun_seconds = time.perf_counter()
    plan = list(placed)
    written = [None if exact else expected.sums(each.wanted) for each in plan]
    listed = Parts(plan, [order for order, sums in enumerate(written) if sums is not None])
    unlisted = Parts(plan, [order for order, sums in enumerate(written) if sums is None])

    events.begin("checking", listed.nbytes + unlisted.nbytes)
    differing = _against_manifest(listed, "".join(filter(None, written)), memory, device, events)
    differing += _against_files(unlisted, memory, device, events, exact=exact)
    events.end()
    if differing:
        raise _error(differing)
    file_tensors = written.count(None)
    return IntegrityFacts(len(plan) - file_tensors, file_tensors, exact, time.perf_counter() - begun_seconds)


class _Differing(NamedTuple):
    """A part that is not in memory what it should be. `listed` are the manifest's sums, where it was held against them;
    `first_bytes` is the first byte of the tensor that differs, where it is known."""

    part: Part
    listed: tuple[int, int] | None
    first_bytes: int | None


def _against_manifest(
    parts: Parts, block_sums: str, memory: Memory, device: Device | None, events: Events
) -> list[_Differing]:
    listed = sums_in(block_sums)
    found = _memory_sums(parts, memory, device, events)
    numbers = np.flatnonzero((found != listed).any(1)).tolist()
    return [_Differing(parts.part(number), tuple(listed[number].tolist()), None) for number in numbers]


def _against_files(
    parts: Parts, memory: Memory, device: Device | None, events: Events, *, exact: bool
) -> list[_Differing]:
    if exact or device is None:
        return [_Differing(part, None, at) for part, at in compare(parts, memory, device, events)]
    in_files = file_sums(parts, events)
    found = _memory_sums(parts, memory, device, NULL).tolist()
    numbers = [number for number, sums in enumerate(found) if tuple(sums) != in_files[number]]
    return [_Differing(parts.part(number), None, None) for number in numbers]


def _memory_sums(parts: Parts, memory: Memory, device: Device | None, events: Events) -> Sums:
    if device is None:
        return host_sums(np.asarray(memory).data, parts.blocks, events)
    import torch

    try:
        sums = device_sums(memory, parts.blocks)
    except torch.OutOfMemoryError as error:
        wanted = format_size(2 * WINDOW_BYTES)
        raise _no_room(f"{device.name} has no {wanted} left to compute block sums in") from error
    events.advance(parts.nbytes)
    return sums


def _no_room(message: str) -> OutOfMemoryError:
    error = OutOfMemoryError(message, hint="load without verify, or a share of the checkpoint (tp, stage, experts)")
    error.locate(stage=STAGE)
    return error


def _error(differing: Sequence[_Differing]) -> ColdctlError:
    """For the first in the order of the plan, with the number of tensors besides it."""
    part, listed, first_bytes = min(differing, key=lambda each: (each.part.order, each.part.start_bytes))
    others = len({each.part.order for each in differing}) - 1
    name, file = part.wanted.name, part.wanted.source.name
    block = f"bytes {part.start_bytes} to {part.start_bytes + part.nbytes}"
    error: ColdctlError
    if listed is not None and file_sums([part], NULL)[part.number] != listed:
        message = f"{block} of tensor {name} differ from what was written"
        error = fault(finding("digest.mismatch", message, file=file, tensor=name), others)
    else:
        where = f"within {block}" if first_bytes is None else f"first at byte {first_bytes}"
        more = f" (and so {'does 1 more tensor' if others == 1 else f'do {others} more tensors'})" if others else ""
        error = CorruptedError(f"{file}: tensor {name} differs in memory from the file, {where} of it{more}")
    error.locate(stage=STAGE, file=file, tensor=name)
    return error
