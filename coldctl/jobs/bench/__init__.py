"""bench: see `coldctl.jobs.bench.job`."""

from __future__ import annotations

from coldctl.jobs.bench.job import bench
from coldctl.jobs.bench.options import BenchOptions

__all__ = ["BenchOptions", "bench"]
