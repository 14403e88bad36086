"""What an option may be, in one line each: the table of them is `coldctl.loader.load.options.ALLOWED`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from coldctl.errors import UsageError

_MOST_SHOWN = 80


class Allowed(NamedTuple):
    """`what` completes the sentence "expected …"; `allows` takes a value of any type."""

    what: str
    allows: Callable[[Any], bool]


def require(option: str, value: object, allowed: Allowed) -> None:
    """Raise UsageError, naming the option, what was given and what is expected, for a value that is not allowed."""
    if not allowed.allows(value):
        raise UsageError(f"{option} is {_shown(value)}, expected {allowed.what}")


def one_of(choices: Sequence[str]) -> Allowed:
    return Allowed(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def or_none(allowed: Allowed) -> Allowed:
    return Allowed(f"{allowed.what}, or None", lambda value: value is None or allowed.allows(value))


def whole(what: str, least: int, most: float = math.inf, *, step: int = 1) -> Allowed:
    """Ints from `least` to `most` that are multiples of `step`."""
    return Allowed(what, lambda value: is_whole(value) and least <= value <= most and value % step == 0)


def is_whole(value: object) -> bool:
    """Whether it is an int. True and False are, to Python, and are no numbers here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a float, or an int that can be one."""
    return isinstance(value, float) or (is_whole(value) and abs(value) <= sys.float_info.max)


def is_part(value: Any) -> bool:
    """Whether it is a pair of ints."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_whole, value))


def is_device(value: object) -> bool:
    """Whether it is a name, a torch.device, or something that answers the protocol of devices."""
    is_protocols = hasattr(value, "allocate") and not isinstance(value, type)
    return isinstance(value, str) or type(value).__module__ == "torch" or is_protocols


def is_transform(value: object) -> bool:
    """Whether it is an object, and no class, with the methods of `coldctl.Transform`."""
    methods = [getattr(value, name, None) for name in ("companions", "apply")]
    return all(map(callable, methods)) and not isinstance(value, type)


def are(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether all of a list fit. One str is no list."""
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(fits, value))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # an object's own; ValueError for an int of thousands of digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
