"""fp8: see `coldctl.jobs.fp8.job`."""

from __future__ import annotations

from coldctl.jobs.fp8.job import convert_fp8
from coldctl.jobs.fp8.options import Fp8Options

__all__ = ["Fp8Options", "convert_fp8"]
