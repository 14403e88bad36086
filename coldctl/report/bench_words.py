"""What a person calls the stages and the limits of a benchmark."""

from __future__ import annotations

from coldctl.results.load import Stage

STAGES = {
    "import_torch": "import torch",
    "import_peer": "import the peer",
    "cuda_context": "CUDA context",
    "plan": "headers and plan",
    "allocate": "allocate",
    "pin": "pin",
    "read": "read",
    "h2d": "H2D",
    "touch": "touch",
    "verify": "verify",
}
"""In the order in which a load comes to them."""

LIMITS = {
    "disk_direct": "disk, direct",
    "disk_buffered": "disk, buffered",
    "memcpy": "memcpy",
    "h2d_1": "H2D, 1 stream",
    "h2d_2": "H2D, 2 streams",
    "h2d_4": "H2D, 4 streams",
}

_NOTHING_MOVES = ("allocate", "pin")


def stage_rate(stage: Stage) -> float | None:
    """Bytes per second of a stage that moves bytes; none of one that only makes room for them."""
    moves = stage.bytes > 0 and stage.seconds > 0 and stage.name not in _NOTHING_MOVES
    return stage.bytes / stage.seconds if moves else None
