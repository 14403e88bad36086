"""Room for what a command imports, looked for while the lack of it can still be told."""

from __future__ import annotations

import mmap

from coldctl.errors import EnvironmentLacksError

# numpy 2.4 with one OpenBLAS thread takes 80 MiB of addresses, not of memory: mostly OpenBLAS and its buffer.
_NUMPY_BYTES = 96 << 20


def require_room_for_numpy() -> None:
    """Raise EnvironmentLacksError where a limit of addresses (ulimit -v, ulimit -d) leaves too few to load numpy.

    OpenBLAS does not raise then: it ends the process, with the exit code that means "the answer is no".
    """
    try:
        mmap.mmap(-1, _NUMPY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise EnvironmentLacksError(
            "too little address space to load numpy", hint="raise the limit of virtual memory (ulimit -v)"
        ) from error
