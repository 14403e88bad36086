"""Ordinary host memory that bytes pass through, or that one tensor stands in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coldctl.errors import OutOfMemoryError
from coldctl.loader.load.transfers import Transfer
from coldctl.units import format_size


def staging(nbytes: int, transfer: Transfer) -> NDArray[np.uint8]:
    """Memory of shape [nbytes], not cleared. Raises OutOfMemoryError with the place of `transfer`."""
    try:
        return np.empty(nbytes, dtype=np.uint8)
    except MemoryError as cause:
        error = OutOfMemoryError(f"cannot get {format_size(nbytes)} of host memory to read into")
        error.locate(stage="allocate", file=transfer.source.name, tensor=transfer.name)
        raise error from cause
