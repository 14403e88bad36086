"""repack: see `coldctl.jobs.repack.job`."""

from __future__ import annotations

from coldctl.jobs.repack.job import RepackOptions, repack

__all__ = ["RepackOptions", "repack"]
