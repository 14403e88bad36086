"""fp8: write a checkpoint anew with its embeddings and head in FP8, once it is known what they lose."""

from __future__ import annotations

import time

from coldctl.errors import RefusedError
from coldctl.events import NULL, Events
from coldctl.fp8.conventions import Convention
from coldctl.fp8.convert import Fp8Conversion
from coldctl.fp8.measure import measure
from coldctl.fp8.verdicts import verdicts
from coldctl.jobs.fp8.gate import objections
from coldctl.jobs.fp8.options import Fp8Options, check
from coldctl.jobs.fp8.plan import make_plan
from coldctl.jobs.repack import job as repacking
from coldctl.jobs.repack.rewrite import Rewrite
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.host.memory import PeakAnon
from coldctl.results.fp8 import Fp8Result
from coldctl.results.repack import RepackResult

_NAMED = 4


def convert_fp8(options: Fp8Options, events: Events = NULL) -> Fp8Result:
    """Measure what FP8 costs, and write `options.source` with it to `options.target`: all of it, or nothing.

    With `report` nothing is written, and the result says what speaks against it. Otherwise that raises RefusedError.
    So do, with and without, results that an engine would load and take for something else. For the other errors see
    `coldctl.repack`. Success does not promise that an engine loads the result: its `engines` say which do.
    """
    start_seconds = time.perf_counter()
    check(options)
    with PeakAnon() as memory:
        plan = make_plan(options)
        measured = measure(plan.weights, events)
        losses = [each.loss for each in measured]
        against = objections(
            losses,
            max_error=options.allowed_error,
            has_scales=plan.convention.scale != "none",
            allow_nonfinite=options.allow_nonfinite,
        )
        written = None
        if plan.rewrite is not None:
            _refuse(against, plan.convention)
            conversion = Fp8Conversion(plan.checkpoint, [each.scaled for each in measured])
            written = _write(plan.rewrite._replace(conversion=conversion), options, events)
    return Fp8Result(
        source=options.source,
        target=None if plan.rewrite is None else options.target,
        convention=plan.convention.name,
        format=options.format,
        max_error=options.allowed_error,
        tensors=losses,
        bytes_before=_tensor_bytes(plan.checkpoint),
        bytes_after=_tensor_bytes(plan.future),
        engines=verdicts(plan.convention, [weight.target for weight in plan.weights]),
        objections=against,
        dry_run=options.dry_run,
        written=written,
        seconds=time.perf_counter() - start_seconds,
        peak_anon_bytes=memory.peak_bytes,
    )


def _refuse(against: list[str], convention: Convention) -> None:
    if not against:
        return
    more = f"; and {len(against) - _NAMED} more" if len(against) > _NAMED else ""
    scales = "take a convention with scales (--for), " if convention.scale == "none" else ""
    raise RefusedError(
        "; ".join(against[:_NAMED]) + more,
        hint=f"--report shows what each tensor loses; {scales}choose others with --tensors, or allow it",
    )


def _write(rewrite: Rewrite, options: Fp8Options, events: Events) -> RepackResult:
    start_seconds = time.perf_counter()
    with PeakAnon() as memory:
        files, removed = repacking.carry_out(rewrite, options.as_repack, events, label="converting")
    seconds = time.perf_counter() - start_seconds
    return repacking.result_of(rewrite, options.as_repack, files, removed, seconds, memory.peak_bytes)


def _tensor_bytes(checkpoint: Checkpoint) -> int:
    return sum(tensor.nbytes for tensor in checkpoint.tensors())
