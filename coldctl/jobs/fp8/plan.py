"""What a run will do, and all that can be refused before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from coldctl.errors import RefusedError
from coldctl.events import NULL
from coldctl.fp8 import model_config, refusals
from coldctl.fp8.conventions import CONVENTIONS, Convention, Format
from coldctl.fp8.convert import converted
from coldctl.fp8.targets import find_targets
from coldctl.fp8.weight import Weight
from coldctl.jobs.fp8.options import Fp8Options
from coldctl.jobs.repack import job as repacking
from coldctl.jobs.repack.apart import check_apart
from coldctl.jobs.repack.rewrite import Rewrite, plan_rewrite
from coldctl.jobs.repack.shards import plan_shards
from coldctl.loader.format import config as config_file
from coldctl.loader.format import manifest
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint


class Plan(NamedTuple):
    """`future` is the checkpoint as it will be. `rewrite` writes it, once the scales are known; None for a report."""

    convention: Convention
    checkpoint: Checkpoint
    weights: list[Weight]
    future: Checkpoint
    rewrite: Rewrite | None


def make_plan(options: Fp8Options) -> Plan:
    """Raises RefusedError and, where a target is named, what a repack raises before it begins to write."""
    checkpoint = open_checkpoint(options.source)
    config = config_file.load(checkpoint.root)
    convention = CONVENTIONS[options.convention]
    targets = find_targets(checkpoint, config, options.tensors)
    refusals.check(convention, options.format, checkpoint, config, targets)
    dtype = model_config.model_dtype(config)
    weights = [convention.weight(target, options.format, dtype) for target in targets]
    future = converted(checkpoint, weights)
    rewrite = None if options.report else _plan_rewrite(checkpoint, future, config, weights, options)
    return Plan(convention, checkpoint, weights, future, rewrite)


def _plan_rewrite(
    checkpoint: Checkpoint, future: Checkpoint, config: Mapping[str, Any], weights: list[Weight], options: Fp8Options
) -> Rewrite:
    asked = options.as_repack
    repacking.check(asked)
    check_apart(checkpoint, asked.target)
    shards = plan_shards(future, asked.align, asked.order, None)
    rewrite = plan_rewrite(future, shards, manifest.Layout(asked.align, asked.order, "kept", "keep"))
    rewrite = _with_config(rewrite, CONVENTIONS[options.convention], options.format, config, weights)
    # A target in use, or too full, should stop it now and not after the weights were read.
    repacking.carry_out(rewrite, replace(asked, dry_run=True), NULL, label="")
    return rewrite


def _with_config(
    rewrite: Rewrite, convention: Convention, fmt: Format, config: Mapping[str, Any], weights: list[Weight]
) -> Rewrite:
    if not convention.needs_config:
        return rewrite
    if model_config.NAME not in rewrite.sidecars:
        raise RefusedError(
            f"{convention.name} needs config.json, and that of the source does not come along: it is a link that leads"
            " out of the checkpoint",
            hint="put the file itself beside the weights",
        )
    modules = {tensor.name.rpartition(".")[0] for tensor in rewrite.checkpoint.tensors()}
    edited = model_config.edited(config, convention, fmt, weights, modules)
    return rewrite if edited is None else rewrite._replace(edited={model_config.NAME: edited})
