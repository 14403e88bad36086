"""What torch raises about a device, as coldctl's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coldctl.errors import DeviceError, OutOfMemoryError


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise OutOfMemoryError or DeviceError, "cannot `doing`: …", for what torch raises in the block.

    torch raises a RuntimeError for whatever CUDA refuses, and torch.OutOfMemoryError is one of them.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"cannot {doing}: {first_line(error)}",
            hint="free memory on the device (nvidia-smi says who uses it), or load a part of the checkpoint",
        ) from error
    except RuntimeError as error:
        raise DeviceError(f"cannot {doing}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What CUDA said; torch adds lines on how to debug kernels."""
    return str(error).partition("\n")[0]
