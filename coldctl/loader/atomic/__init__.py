"""Files that appear whole or not at all, and old ones that go only when the new ones stand.

A folder is written by one coldctl at a time (flock on the folder itself, which leaves nothing behind). What a
killed run left is undone by the next run that writes there.
"""

from __future__ import annotations

from coldctl.loader.atomic.private import is_leftover, leads_out
from coldctl.loader.atomic.staging import Staging, remove_temporaries

__all__ = ["Staging", "is_leftover", "leads_out", "remove_temporaries"]
