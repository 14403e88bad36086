"""coldctl: prepare, verify, warm and load LLM checkpoints for cold starts. The public API, imported lazily.

`open(path)` gives a checkpoint to load from; `repack`, `convert_fp8`, `verify`, `prewarm`, `evict`, `status` and
`bench` are the commands, each with its options. All errors are in `coldctl.errors`, and what loads and commands return
in `coldctl.results`.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing it from typing would take longer than `coldctl --version` may
if TYPE_CHECKING:
    from coldctl.errors import CancelledError, ColdctlError, NotLoadedError
    from coldctl.jobs.bench import BenchOptions, bench
    from coldctl.jobs.evict import EvictOptions, evict
    from coldctl.jobs.fp8 import Fp8Options, convert_fp8
    from coldctl.jobs.prewarm import PrewarmOptions, prewarm
    from coldctl.jobs.repack import RepackOptions, repack
    from coldctl.jobs.status import StatusOptions, status
    from coldctl.jobs.verify import VerifyOptions, verify
    from coldctl.loader.load.loaded import Loaded
    from coldctl.loader.load.loading import Loading
    from coldctl.loader.load.opened import OpenCheckpoint, open
    from coldctl.loader.load.transform import Dequantise, Transform, transformed

__all__ = [
    "BenchOptions",
    "CancelledError",
    "ColdctlError",
    "Dequantise",
    "EvictOptions",
    "Fp8Options",
    "Loaded",
    "Loading",
    "NotLoadedError",
    "OpenCheckpoint",
    "PrewarmOptions",
    "RepackOptions",
    "StatusOptions",
    "Transform",
    "VerifyOptions",
    "__version__",
    "bench",
    "convert_fp8",
    "evict",
    "open",
    "prewarm",
    "repack",
    "status",
    "transformed",
    "verify",
]

_HOMES = {
    "BenchOptions": "coldctl.jobs.bench",
    "CancelledError": "coldctl.errors",
    "ColdctlError": "coldctl.errors",
    "Dequantise": "coldctl.loader.load.transform",
    "EvictOptions": "coldctl.jobs.evict",
    "Fp8Options": "coldctl.jobs.fp8",
    "Loaded": "coldctl.loader.load.loaded",
    "Loading": "coldctl.loader.load.loading",
    "NotLoadedError": "coldctl.errors",
    "OpenCheckpoint": "coldctl.loader.load.opened",
    "PrewarmOptions": "coldctl.jobs.prewarm",
    "RepackOptions": "coldctl.jobs.repack",
    "StatusOptions": "coldctl.jobs.status",
    "Transform": "coldctl.loader.load.transform",
    "VerifyOptions": "coldctl.jobs.verify",
    "bench": "coldctl.jobs.bench",
    "convert_fp8": "coldctl.jobs.fp8",
    "evict": "coldctl.jobs.evict",
    "open": "coldctl.loader.load.opened",
    "prewarm": "coldctl.jobs.prewarm",
    "repack": "coldctl.jobs.repack",
    "status": "coldctl.jobs.status",
    "transformed": "coldctl.loader.load.transform",
    "verify": "coldctl.jobs.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coldctl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
