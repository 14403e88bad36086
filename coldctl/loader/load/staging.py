"""Ordinary host memory that bytes pass through, or that one tensor stands in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coldctl.loader.load.transfers import Transfer
from coldctl.loader.scratch import shortage
from coldctl.units import format_size


def staging(nbytes: int, transfer: Transfer) -> NDArray[np.uint8]:
    """Memory of shape [nbytes], not cleared. Raises OutOfMemoryError with the place of `transfer`."""
    what = f"{format_size(nbytes)} of host memory to read into"
    with shortage(stage="allocate", file=transfer.source.name, tensor=transfer.name, what=what):
        return np.empty(nbytes, dtype=np.uint8)
