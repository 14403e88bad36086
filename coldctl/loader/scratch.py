"""Host memory that bytes pass through, and the error where it cannot be had."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from coldctl.errors import OutOfMemoryError
from coldctl.units import format_size

_HINT = "raise the limit of the address space (ulimit -v), or stop what else takes memory here"

_TORCHS_ALLOCATOR = "DefaultCPUAllocator"


def scratch(nbytes: int) -> memoryview:
    """Memory of shape [nbytes] that begins on a page, zeros, for one thread to read into. Raises OutOfMemoryError."""
    what = f"{format_size(nbytes)} of host memory to read into"
    try:
        return memoryview(mmap.mmap(-1, nbytes))
    except OSError as error:
        raise OutOfMemoryError(f"cannot get {what}: {error.strerror}", hint=_HINT) from error


@contextmanager
def shortage(
    *, stage: str, file: str | None = None, tensor: str | None = None, what: str = "host memory for its own work"
) -> Iterator[None]:
    """Raise OutOfMemoryError with its place, "cannot get `what`", where the block could not have memory of the host.

    Python and numpy raise MemoryError for what the kernel refuses them, as where the address space is limited, and
    torch a RuntimeError that names its allocator.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as cause:
        if isinstance(cause, RuntimeError) and _TORCHS_ALLOCATOR not in str(cause):
            raise
        error = OutOfMemoryError(f"cannot get {what}", hint=_HINT)
        error.locate(stage=stage, file=file, tensor=tensor)
        raise error from cause
