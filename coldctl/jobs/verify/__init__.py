"""verify: see `coldctl.jobs.verify.job`."""

from __future__ import annotations

from coldctl.jobs.verify.job import VerifyOptions, verify

__all__ = ["VerifyOptions", "verify"]
