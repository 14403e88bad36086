"""Which kernels to use: the compiled ones where they are there, unless COLDCTL_NATIVE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from coldctl.errors import EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from coldctl.kernels.base import Kernels

VARIABLE = "COLDCTL_NATIVE"


def wanted_in(environ: Mapping[str, str]) -> str:
    """`auto` (the default), `on` for compiled kernels only, or `off` for none. UsageError for another value."""
    wanted = environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "on", "off"):
        raise UsageError(f"invalid value for {VARIABLE}: {wanted!r}", hint="set it to auto, on or off")
    return wanted


@cache
def kernels() -> Kernels:
    """The fastest kernels that COLDCTL_NATIVE allows. Raises EnvironmentLacksError where `on` cannot be had."""
    from coldctl.kernels import compiled
    from coldctl.kernels.plain import PlainKernels

    wanted = wanted_in(os.environ)
    if wanted == "off":
        return PlainKernels()
    try:
        return compiled.CompiledKernels(compiled.levels()[-1])
    except EnvironmentLacksError:
        if wanted == "on":
            raise
        return PlainKernels()
