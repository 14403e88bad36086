"""prewarm: see `coldctl.jobs.prewarm.job`."""

from __future__ import annotations

from coldctl.jobs.prewarm.job import PrewarmOptions, prewarm

__all__ = ["PrewarmOptions", "prewarm"]
