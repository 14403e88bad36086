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
from coldctl.loader.load.place import Placed
from coldctl.loader.load.reread import STAGE, Part, file_sums, parts_of
from coldctl.loader.load.sums import WINDOW_BYTES, Block, device_sums, host_sums
from coldctl.loader.load.wanted import Wanted
from coldctl.loader.sink import Sums, sums_in
from coldctl.results import IntegrityFacts
from coldctl.units import format_size


class Expected:
    """The block sums in a manifest. `listed` is None where there is none."""

    def __init__(self, listed: Manifest | None) -> None:
        self._listed = {tensor.name: tensor for tensor in listed.tensors} if listed else {}

    @classmethod
    def beside(cls, folder: str) -> Expected:
        """Those in the manifest in `folder`. Raises what `manifest.load` raises of one that cannot be used."""
        return cls(manifest.load(folder))

    def sums(self, wanted: Wanted) -> list[Sums] | None:
        """Those of `wanted`. None when it is a part of a tensor, or no tensor that the manifest has at that place.

        Raises FaultError (`manifest.tensor`) when the manifest has the tensor, but not sums for each block.
        """
        listed, tensor, file = self._listed.get(wanted.name), wanted.tensor, wanted.source.name
        if listed is None or not wanted.whole:
            return None
        place = (tensor.dtype, tensor.shape, file, tensor.offset_bytes, tensor.nbytes)
        if place != (listed.dtype, listed.shape, listed.file, listed.offset_bytes, listed.nbytes):
            return None
        sums = sums_in(listed.block_sums, listed.nbytes)
        if sums is None:
            message = f"{manifest.NAME} has not 32 hex digits of block sums for each 4 MiB of tensor {wanted.name}"
            raise fault(finding("manifest.tensor", message, file=file, tensor=wanted.name))
        return sums


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
    tensors = [(each, None if exact else expected.sums(each.wanted)) for each in placed]
    listed: list[tuple[Part, Sums]] = []
    unlisted: list[Part] = []
    for order, (each, sums) in enumerate(tensors):
        if sums is None:
            unlisted += parts_of(order, each)
        else:
            listed += zip(parts_of(order, each), sums, strict=True)

    events.begin("checking", sum(each.wanted.nbytes for each, _ in tensors))
    differing = _against_manifest(listed, memory, device, events)
    differing += _against_files(unlisted, memory, device, events, exact=exact)
    events.end()
    if differing:
        raise _error(differing)
    manifest_tensors = sum(sums is not None for _, sums in tensors)
    return IntegrityFacts(manifest_tensors, len(tensors) - manifest_tensors, exact, time.perf_counter() - begun_seconds)


class _Differing(NamedTuple):
    """A part that is not in memory what it should be. `listed` are the manifest's sums, where it was held against them;
    `first_bytes` is the first byte of the tensor that differs, where it is known."""

    part: Part
    listed: Sums | None
    first_bytes: int | None


def _against_manifest(
    listed: Sequence[tuple[Part, Sums]], memory: Memory, device: Device | None, events: Events
) -> list[_Differing]:
    found = _memory_sums([part for part, _ in listed], memory, device, events)
    return [_Differing(part, sums, None) for (part, sums), held in zip(listed, found, strict=True) if held != sums]


def _against_files(
    parts: Sequence[Part], memory: Memory, device: Device | None, events: Events, *, exact: bool
) -> list[_Differing]:
    if exact or device is None:
        return [_Differing(part, None, at) for part, at in compare(parts, memory, device, events)]
    in_files = file_sums(parts, events)
    found = _memory_sums(parts, memory, device, NULL)
    return [
        _Differing(part, None, None) for part, sums, held in zip(parts, in_files, found, strict=True) if held != sums
    ]


def _memory_sums(parts: Sequence[Part], memory: Memory, device: Device | None, events: Events) -> list[Sums]:
    blocks = [Block(part.at_bytes, part.nbytes) for part in parts]
    if device is None:
        return host_sums(np.asarray(memory).data, blocks, events)
    import torch

    try:
        sums = device_sums(memory, blocks)
    except torch.OutOfMemoryError as error:
        wanted = format_size(2 * WINDOW_BYTES)
        raise _no_room(f"{device.name} has no {wanted} left to compute block sums in") from error
    events.advance(sum(part.nbytes for part in parts))
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
    if listed is not None and file_sums([part], NULL) != [listed]:
        message = f"{block} of tensor {name} differ from what was written"
        error = fault(finding("digest.mismatch", message, file=file, tensor=name), others)
    else:
        where = f"within {block}" if first_bytes is None else f"first at byte {first_bytes}"
        more = f" (and so {'does 1 more tensor' if others == 1 else f'do {others} more tensors'})" if others else ""
        error = CorruptedError(f"{file}: tensor {name} differs in memory from the file, {where} of it{more}")
    error.locate(stage=STAGE, file=file, tensor=name)
    return error
