"""Compiles the kernels into one shared library: python native/compile.py [FILE]

FILE is where coldctl looks for it in this tree, unless it is given. `CC` and `CFLAGS` are heeded as make does. Fails
with the compiler's status and words, or with 127 where there is none, and leaves no FILE then.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARY = SOURCES.parent / "coldctl" / "kernels" / "libcoldctl.so"
# Contraction would round a product and a sum once instead of twice, and then levels would differ.
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fPIC", "-fvisibility=hidden")


def main() -> int:
    library = Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY
    unfinished = library.with_suffix(f".{os.getpid()}.so")
    compiler, extra = shlex.split(os.environ.get("CC", "cc")), shlex.split(os.environ.get("CFLAGS", ""))
    sources = [os.fspath(source) for source in sorted(SOURCES.glob("*.c"))]
    command = [*compiler, *FLAGS, *extra, "-shared", "-pthread", *sources, "-lm", "-o", os.fspath(unfinished)]
    try:
        status = subprocess.run(command).returncode
    except OSError as error:
        print(f"no C compiler: {error}", file=sys.stderr)
        status = 127
    # Whoever has the old library loaded keeps it: a new file takes its name.
    if status:
        unfinished.unlink(missing_ok=True)
        library.unlink(missing_ok=True)
    else:
        unfinished.replace(library)
    return status


if __name__ == "__main__":
    sys.exit(main())
