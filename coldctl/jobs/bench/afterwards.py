"""What is done after the rounds, which may fail, and must not lose them: a failure becomes a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coldctl.errors import ColdctlError, StoppedError


@contextmanager
def noted(what: str, notes: list[str]) -> Iterator[None]:
    """Whatever fails in the body ends it, and is added to `notes` as the reason for `what`. Raises StoppedError."""
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        notes.append(f"{what}: {error.message if isinstance(error, ColdctlError) else repr(error)}")
