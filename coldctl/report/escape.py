"""Makes text that may come from a file (a name, a message about it) safe to print and to put into JSON.

A tensor or file name can hold whatever its author liked: terminal control sequences, line breaks that forge a line of
ours, marks that reverse the reading direction, characters that show nothing, bytes that are not UTF-8.
"""

from __future__ import annotations

import re

NAME_LIMIT = 120
MESSAGE_LIMIT = 2000

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# Printable by Unicode's categories, but drawn as nothing or as a blank (Default_Ignorable_Code_Point, braille blank).
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

_UNDECODED = re.compile("[\udc80-\udcff]")


def escape(text: str, limit: int = MESSAGE_LIMIT) -> str:
    r"""`text` on one line, every character of it visible; past `limit` characters the middle is left out.

    Control characters (C0, DEL, C1), format characters (bidi marks, zero-width ones), line and paragraph separators,
    private and unassigned code points become `\xNN`, `\uNNNN` or `\UNNNNNNNN`; bytes that were not UTF-8 become `\xNN`.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    return _shorten(text, limit)


def escape_name(text: str) -> str:
    """`escape` for one file or tensor name: at most about 120 characters."""
    return escape(text, NAME_LIMIT)


def undecoded_as_text(text: str) -> str:
    r"""`text` with the bytes that were not UTF-8 as `\xNN`, so that it can be encoded again."""
    visible = _UNDECODED.sub(lambda match: _hex_byte(match.group()), text)
    return visible.encode("utf-8", "backslashreplace").decode("utf-8")


def _shorten(text: str, limit: int) -> str:
    # Only what can be seen at either end is escaped: a name of 100 MB costs no more than a short one.
    if len(text) <= limit:
        pieces = [_visible(character) for character in text]
        if sum(map(len, pieces)) <= limit:
            return "".join(pieces)
    half = (limit - 3) // 2
    return _head(text[:half], half) + "..." + _head(text[-half:][::-1], half, backwards=True)


def _head(text: str, room: int, *, backwards: bool = False) -> str:
    """As many whole characters of `text`, each made visible, as fit into `room`."""
    pieces: list[str] = []
    for character in text:
        piece = _visible(character)
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    return "".join(reversed(pieces) if backwards else pieces)


def _visible(character: str) -> str:
    if character.isprintable() and not _INVISIBLE.match(character):
        return character
    if character in _SHORT:
        return _SHORT[character]
    if _UNDECODED.match(character):
        return _hex_byte(character)
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _hex_byte(surrogate: str) -> str:
    return f"\\x{ord(surrogate) - 0xDC00:02x}"
