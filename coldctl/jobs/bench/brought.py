"""What loads brought, held against what the checkpoint has, and against each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.format.layout import is_filler
from coldctl.results.bench import BenchRun, Contender

Amount = tuple[int, int]
"""Tensors, and their bytes."""


def amounts_of(checkpoint: Checkpoint) -> list[Amount]:
    """What a load may bring: all tensors but coldctl's fillers, or those as well, which no other reader knows."""
    every = list(checkpoint.tensors())
    kept = [tensor for tensor in every if not is_filler(tensor)]
    return [(len(tensors), sum(tensor.nbytes for tensor in tensors)) for tensors in (kept, every)]


def held_to_reference(
    runs: Sequence[BenchRun], contenders: Sequence[Contender], amounts: Collection[Amount]
) -> list[BenchRun]:
    """`runs`, those failed that brought another amount than one of `amounts`, or other bytes than the first of
    coldctl's own that succeeded: their times are none of a load of this checkpoint."""
    own = {contender.name for contender in contenders if contender.kind == "coldctl"}
    held = [_held_to_amounts(run, amounts) for run in runs]
    reference = next((run.content_sum for run in held if run.error is None and run.contender in own), None)
    return [_held_to_sum(run, reference) for run in held]


def _held_to_amounts(run: BenchRun, amounts: Collection[Amount]) -> BenchRun:
    if run.error is not None or (run.tensors, run.bytes) in amounts:
        return run
    tensors, nbytes = next(iter(amounts))
    found = f"{run.tensors:,} tensors and {run.bytes:,} bytes"
    return _discounted(run, f"brought {found}, and not the {tensors:,} and {nbytes:,} of the checkpoint")


def _held_to_sum(run: BenchRun, reference: str | None) -> BenchRun:
    if run.error is not None or reference in (None, run.content_sum):
        return run
    told = f"brought other bytes: their sum is {run.content_sum}, and not that of coldctl's first load"
    return _discounted(run, told)


def _discounted(run: BenchRun, error: str) -> BenchRun:
    return replace(run, error=error, seconds=None, loaded_seconds=None, bytes_per_second=None)
