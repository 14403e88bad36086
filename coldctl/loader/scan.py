"""Sinks that look for values which the format allows and frameworks disagree about."""

from __future__ import annotations

import threading

import numpy as np

from coldctl.loader.format.header import Tensor
from coldctl.loader.source import Source


class BoolScan:
    """Finds BOOL tensors that hold a byte other than 0 and 1: source and tensor names, in `found`."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:  # noqa: ARG002
        if tensor.dtype == "BOOL" and piece and int(np.frombuffer(piece, dtype=np.uint8).max()) > 1:
            with self._lock:
                self.found.add((source.name, tensor.name))
