"""What config.json says of the model. All of it is optional, and nothing of it is believed where bytes decide."""

from __future__ import annotations

import json
import os
from typing import Any

from coldctl.loader.regular import opened

_MAX_BYTES = 16 << 20


def load(root: str) -> dict[str, Any]:
    """The checkpoint's config.json; empty when there is none, or none that can be read as a JSON object."""
    try:
        with opened(os.path.join(root, "config.json")) as (descriptor, status):
            if status.st_size > _MAX_BYTES:
                return {}
            loaded = json.loads(os.pread(descriptor, status.st_size, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def model_type(root: str) -> str | None:
    found = load(root).get("model_type")
    return found if isinstance(found, str) else None
