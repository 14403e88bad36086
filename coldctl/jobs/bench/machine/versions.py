"""Which version of a package is installed, without importing it: an import of torch takes seconds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(distribution: str) -> str | None:
    """None when it is not installed. That it can be imported is not tried."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
