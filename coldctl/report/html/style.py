"""The style sheet of the page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources


@cache
def sheet() -> str:
    """The text of page.css, which stands in the page as it is."""
    return resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def policy() -> str:
    """The page's Content-Security-Policy: nothing is loaded, nothing runs, and no style counts but `sheet`."""
    digest = base64.b64encode(hashlib.sha256(sheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
