"""How a child process is told, before it imports torch, how torch's CUDA allocator should work.

Which variable torch reads (c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.h): since 2.10 the first one
that is set of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, even if it is empty; torch 2.9 asked in the other order
for some of its keys, and the comments in its sources still promise that. It never merges the two. So both are set here,
to the same text. torch reads them once: setting them in a process that uses CUDA already does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldctl.errors import UsageError
from coldctl.units import MIB

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_KEY = "max_split_size_mb"
_LARGE_SEGMENT_MIB = 20
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


def allocator_environment(max_split_size_bytes: int | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to `environment` (that of the child) so that torch splits no block of more than
    `max_split_size_bytes`; nothing for None.

    torch takes whole MiB, so a part of one is cut off, and at least the size of its large segments (20 MiB, or what
    `large_segment_size_mb` says). All other settings that `environment` has for the allocator are kept. Raises
    UsageError for less than torch takes, and beside `backend:cudaMallocAsync` or `expandable_segments:True`, with which
    torch ignores the size.
    """
    if max_split_size_bytes is None:
        return {}
    settings = _parsed(next((environment[name] for name in _VARIABLES if name in environment), ""))
    _refuse_what_undoes_it(settings)
    settings[_KEY] = str(_whole_mib(max_split_size_bytes, settings))
    return dict.fromkeys(_VARIABLES, ",".join(f"{key}:{value}" for key, value in settings.items()))


def _parsed(text: str) -> dict[str, str]:
    """torch's `key:value,key:[value,value]`: blanks mean nothing, the last of equal keys counts. An empty part, which
    would make torch misread all that follows it, is left out."""
    parts = _COMMA_OUTSIDE_BRACKETS.split("".join(text.split()))
    return {key: value for key, _, value in (part.partition(":") for part in parts) if key}


def _refuse_what_undoes_it(settings: Mapping[str, str]) -> None:
    for key, value in (("backend", "cudaMallocAsync"), ("expandable_segments", "True")):
        if settings.get(key) == value:
            raise UsageError(
                f"torch ignores a maximum split size with {key}:{value}, which the environment sets",
                hint=f"take {key} out of {' and '.join(_VARIABLES)}, or leave the maximum split size out",
            )


def _whole_mib(nbytes: int, settings: Mapping[str, str]) -> int:
    large = settings.get("large_segment_size_mb", "")
    least = int(large) if large.isdecimal() else _LARGE_SEGMENT_MIB
    if nbytes // MIB < least:
        raise UsageError(
            f"a maximum split size of {nbytes} bytes is too small for torch's allocator",
            hint=f"use {least}MiB or more: torch splits its own segments of that size in any case",
        )
    return nbytes // MIB
