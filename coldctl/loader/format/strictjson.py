"""JSON as the standard says, where Python's own parser is lenient: no NaN, no key twice, no lone surrogates.

The slow and exact path: it keeps what a fault's message needs. The json module is imported on first use, because a
probe that finds no index needs none.
"""

from __future__ import annotations

_U64_DIGITS = 20


class Object(dict[str, object]):
    """A JSON object. `repeated` names the keys that it gives more than once; the last value counts."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated = _repeated(pairs) if len(self) != len(pairs) else ()


class MalformedError(ValueError):
    """The text is not strict JSON. `position` counts characters from its start, where known."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class SurrogateError(MalformedError):
    """A string holds half of a surrogate pair, which no UTF-8 text can; `value` is the document as parsed."""

    def __init__(self, value: object) -> None:
        super().__init__("a string holds a lone surrogate escape")
        self.value = value


def loads(text: str) -> object:
    """The document, with every object an Object. Numbers with a fraction or an exponent, -0, and those of more than 20
    digits are floats, so that they cannot pass for whole numbers. Raises MalformedError."""
    import json

    try:
        value: object = json.loads(
            text, object_pairs_hook=Object, parse_int=_number, parse_float=_finite, parse_constant=_refuse_constant
        )
        if "\\u" in text and not is_unicode(value):
            raise SurrogateError(value)
    except json.JSONDecodeError as error:
        raise MalformedError(error.msg, error.pos) from None
    except RecursionError:
        raise MalformedError("nested too deeply") from None
    return value


def is_unicode(value: object) -> bool:
    """Whether no string in `value` holds half of a surrogate pair."""
    import json

    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _repeated(pairs: list[tuple[str, object]]) -> tuple[str, ...]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            repeated[key] = None
        seen.add(key)
    return tuple(repeated)


def _number(digits: str) -> int | float:
    if digits == "-0" or len(digits) > _U64_DIGITS:
        return _finite(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedError("a number is out of range")
    return number


def _refuse_constant(name: str) -> object:
    raise MalformedError(f"{name} is not JSON")
