"""The global settings, which have no flags: COLDCTL_DEBUG, COLDCTL_PROGRESS_SECONDS, COLDCTL_LOG_FORMAT,
COLDCTL_NATIVE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coldctl import _native
from coldctl.errors import UsageError

NAMES = ("COLDCTL_DEBUG", "COLDCTL_PROGRESS_SECONDS", "COLDCTL_LOG_FORMAT", _native.VARIABLE)

_TRUE = {"1", "true", "t", "yes", "y", "on"}
_FALSE = {"", "0", "false", "f", "no", "n", "off"}

# A year: more than that is a mistake, and more than a few hundred of them no thread can wait for.
_LONGEST_SECONDS = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`debug`: print tracebacks. `progress_seconds`: between two progress lines off a terminal. `log_json`: JSON Lines
    on stderr instead of text."""

    debug: bool = False
    progress_seconds: float = 10.0
    log_json: bool = False


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings in `environ`. Raises UsageError naming the variable whose value makes no sense."""
    _native.wanted_in(environ)
    return Settings(
        debug=_boolean(environ, "COLDCTL_DEBUG"),
        progress_seconds=_seconds(environ, "COLDCTL_PROGRESS_SECONDS", default=10.0),
        log_json=_log_json(environ, "COLDCTL_LOG_FORMAT"),
    )


def is_true(text: str) -> bool:
    """Whether `text` switches a flag on, by the words that typer takes."""
    return text.strip().lower() in _TRUE


def _boolean(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "")
    if not is_true(text) and text.strip().lower() not in _FALSE:
        raise UsageError(f"invalid value for {name}: {text!r}", hint="set it to 1 or 0")
    return is_true(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _LONGEST_SECONDS:
        raise UsageError(
            f"invalid value for {name}: {text!r}", hint="set it to a number of seconds above 0, such as 10"
        )
    return seconds


def _log_json(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name) or "text"
    if text not in ("text", "json"):
        raise UsageError(f"invalid value for {name}: {text!r}", hint="set it to text or json")
    return text == "json"
