"""A file mapped read-only, as memory that tensors are views on: nothing is copied, and nothing is read before its use.

Linux reads a page when it is first touched, and kills the process with SIGBUS where it cannot: when the disk fails, or
when the file has become shorter. Whoever would rather have an exception reads the file into memory instead.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldctl.loader.syscalls import map_read_only, unmap


class Mapping:
    """The first `nbytes` (1 and more) of the open file `fd`, mapped at `address` on a page.

    It is unmapped when the mapping itself and everything that was made from it are gone. Raises OSError: ENOMEM where
    addresses or mappings have run out, ENODEV where the filesystem cannot map.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.address = map_read_only(fd, 0, nbytes)
        self.nbytes = nbytes
        unmapping = weakref.finalize(self, unmap, self.address, nbytes)
        unmapping.atexit = False  # tensors may outlive the interpreter's last steps, and the kernel unmaps then anyway

    def numpy_bytes(self) -> NDArray[np.uint8]:
        """The bytes as an array that nobody can make writable."""
        return np.asarray(_Bytes(self, read_only=True))

    def torch_bytes(self) -> Any:
        """The bytes as a torch tensor of uint8. torch knows no read-only tensors: writing to it kills the process."""
        import torch

        return torch.from_numpy(np.asarray(_Bytes(self, read_only=False)))


class _Bytes:
    """What numpy takes for an array, and keeps for as long as it uses the memory.

    torch warns of arrays that cannot be written, and filters for warnings are shared by all threads: it is told that
    this one can.
    """

    def __init__(self, mapping: Mapping, *, read_only: bool) -> None:
        self._mapping = mapping
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (mapping.nbytes,),
            "data": (mapping.address, read_only),
        }
