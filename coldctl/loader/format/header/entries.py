"""From the header's JSON to its entries: a fast path that proves itself exact, and a slow one that explains faults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import cast

import msgspec

from coldctl.loader.format import strictjson
from coldctl.loader.format.header.model import METADATA, Entry
from coldctl.loader.format.rules import Findings

_PLAIN_METADATA = re.compile(rb'\{\s*"__metadata__"\s*:\s*(\{[^{}\\]*\})\s*,')
_WHITESPACE = b" \t\r\n"
_FIELDS = ("dtype", "shape", "data_offsets")
_U64 = 2**64 - 1
_EXPLAINED_BYTES = 16 << 20
# The reference's parser refuses JSON nested 128 deep; an entry's extra field begins at depth 2.
_DEEPEST_EXTRA = 120

_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entries = msgspec.json.Decoder(dict[str, Entry]).decode
_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


@dataclass
class Entries:
    """The entries of a header, by name, in its order.

    `misfits` are the offsets of entries that have another fault; `complete` is False when offsets themselves are
    faulty, so that nothing can be said about what lies between tensors.
    """

    metadata: dict[str, str] | None = None
    tensors: dict[str, Entry] = field(default_factory=dict)
    misfits: dict[str, tuple[int, int]] = field(default_factory=dict)
    complete: bool = True


def read_entries(header: bytes, found: Findings) -> Entries | None:
    """The entries of `header`, which begins with `{` and is UTF-8. Faults go to `found`; None when it is not JSON."""
    entries = _fast(header)
    if entries is None and len(header) > _EXPLAINED_BYTES and _has_misfit(header, found):
        return None
    return entries or _exact(header, found)


def _has_misfit(header: bytes, found: Findings) -> bool:
    """Name the first value that has not its place's type, without building any: tens of MB of tiny lists would take
    gigabytes as Python objects. Only after this is a large header explained in full."""
    name = METADATA
    try:
        raw = _decode_top(header)
        _decode_metadata(raw.pop(METADATA, msgspec.Raw(b"{}")))
        for name, entry in raw.items():  # noqa: B007 -- the name is for the report below
            _decode_entry(entry)
    except msgspec.ValidationError as error:
        if name == METADATA:
            found.add("header.metadata", f"{METADATA} is not an object of strings: {error}")
        else:
            found.add("header.entry", f'the entry of "{name}" is none: {error}', tensor=name)
        return True
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        found.add("header.json", f"the header is not JSON: {error}")
        return True
    return False


def _fast(header: bytes) -> Entries | None:
    """The entries, or None when there is anything that needs a closer look.

    A parser drops the first of two equal keys, and the fields it does not know. Proof that it dropped nothing: encode
    what it kept, and compare lengths without white space. No token that is kept can grow: strings come back with the
    fewest escapes that JSON allows and raw otherwise, whole numbers in their one canonical form (-0 shrinks), and no
    other kind of token passes the types. All that is dropped makes it shorter. So equal lengths mean nothing was
    dropped; a shorter one may also mean escapes, and is no fault in itself.
    """
    try:
        metadata, tensors = _at_once(header) or _one_by_one(header)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    kept = _encode(tensors if metadata is None else {METADATA: metadata, **tensors})
    if len(kept.translate(None, _WHITESPACE)) != len(header.translate(None, _WHITESPACE)):
        return None
    return Entries(metadata, tensors)


def _at_once(header: bytes) -> tuple[dict[str, str] | None, dict[str, Entry]] | None:
    """The metadata, which most writers put first, and all else in one go; None when it is not written so."""
    first = _PLAIN_METADATA.match(header)
    try:
        metadata = _decode_metadata(first[1]) if first else None
        tensors = _decode_entries(b"{" + header[first.end() :] if first else header)
        return None if METADATA in tensors else (metadata, tensors)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _one_by_one(header: bytes) -> tuple[dict[str, str] | None, dict[str, Entry]]:
    raw = _decode_top(header)
    raw_metadata = raw.pop(METADATA, None)
    metadata = None if raw_metadata is None else _decode_metadata(raw_metadata)
    return metadata, {name: _decode_entry(entry) for name, entry in raw.items()}


def _exact(header: bytes, found: Findings) -> Entries | None:
    text = header.decode()
    try:
        document = strictjson.loads(text)
    except strictjson.SurrogateError as error:
        _report_surrogates(error.value, found)
        return None
    except strictjson.MalformedError as error:
        found.add("header.json", f"the header is not JSON: {error.reason}{_place(text, error.position)}")
        return None
    top = cast(strictjson.Object, document)  # it begins with {
    for name in top.repeated:
        if name == METADATA:
            found.add("header.duplicate-key", f"the header gives {METADATA} more than once")
        else:
            found.add("header.duplicate-key", f'the header gives tensor "{name}" more than once', tensor=name)
    entries = Entries()
    for name, value in top.items():
        if name == METADATA:
            entries.metadata = _metadata(value, found)
        else:
            _entry(name, value, entries, found)
    return entries


def _place(text: str, position: int | None) -> str:
    if position is None:
        return ""
    return f" (byte {len(text[:position].encode()):,} of the header)"


def _report_surrogates(document: object, found: Findings) -> None:
    for name, value in cast(strictjson.Object, document).items():
        if not strictjson.is_unicode({name: value}):
            shown = name.encode("utf-8", "backslashreplace").decode()
            message = f'the entry of "{shown}" holds half of a surrogate pair, which no text can'
            found.add("header.utf8", message, tensor=None if name == METADATA else shown)


def _metadata(value: object, found: Findings) -> dict[str, str] | None:
    if not isinstance(value, strictjson.Object):
        found.add("header.metadata", f"{METADATA} is {kind_of(value)}, not an object")
        return None
    for key in value.repeated:
        found.add("header.duplicate-key", f'{METADATA} gives "{key}" more than once')
    for key, item in value.items():
        if not isinstance(item, str):
            found.add("header.metadata", f'{METADATA} has {kind_of(item)} under "{key}", not a string')
    return cast(dict[str, str], dict(value))


def _entry(name: str, value: object, entries: Entries, found: Findings) -> None:
    """Put the tensor where it belongs in `entries`, with its faults in `found`."""
    before = found.errors
    offsets = None
    if isinstance(value, strictjson.Object):
        offsets = _fields(name, value, found)
    else:
        found.add("header.entry", f'the entry of tensor "{name}" is {kind_of(value)}, not an object', tensor=name)
    if offsets is None:
        entries.complete = False
    elif found.errors != before:
        entries.misfits[name] = offsets
    else:
        fields = cast(strictjson.Object, value)
        shape = tuple(cast(list[int], fields["shape"]))
        entries.tensors[name] = Entry(cast(str, fields["dtype"]), shape, offsets)


def _fields(name: str, entry: strictjson.Object, found: Findings) -> tuple[int, int] | None:
    for key in entry.repeated:
        found.add("header.duplicate-key", f'tensor "{name}" gives "{key}" more than once', tensor=name)
    for key in _FIELDS:
        if key not in entry:
            found.add("header.entry", f'tensor "{name}" has no {key}', tensor=name)
    for key, value in entry.items():
        if key not in _FIELDS:
            _extra(name, key, value, found)
    if "dtype" in entry and not isinstance(entry["dtype"], str):
        found.add("header.dtype", f'the dtype of tensor "{name}" is {kind_of(entry["dtype"])}', tensor=name)
    if "shape" in entry:
        _check_shape(name, entry["shape"], found)
    return _offsets(name, entry["data_offsets"], found) if "data_offsets" in entry else None


def _extra(name: str, key: str, value: object, found: Findings) -> None:
    fault = _nested_fault(value)
    if fault:
        rule, what = fault
        found.add(rule, f'the field "{key}" of tensor "{name}" {what}', tensor=name)
    else:
        found.add("header.extra-field", f'tensor "{name}" has a field "{key}" that the format lacks', tensor=name)


def _nested_fault(value: object) -> tuple[str, str] | None:
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > _DEEPEST_EXTRA:
            return "header.json", "is nested too deeply"
        if isinstance(item, strictjson.Object):
            if item.repeated:
                return "header.duplicate-key", f'gives "{item.repeated[0]}" more than once'
            pending += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, list):
            pending += [(inner, depth + 1) for inner in item]
    return None


def _check_shape(name: str, shape: object, found: Findings) -> None:
    if not isinstance(shape, list):
        found.add("header.shape", f'the shape of tensor "{name}" is {kind_of(shape)}, not a list', tensor=name)
        return
    for dimension in shape:
        if not _is_whole(dimension):
            what = kind_of(dimension)
            found.add("header.shape", f'the shape of tensor "{name}" holds {what}, not a whole number', tensor=name)
            return


def _offsets(name: str, offsets: object, found: Findings) -> tuple[int, int] | None:
    if not isinstance(offsets, list) or len(offsets) != 2:
        what = f"a list of {len(offsets):,}" if isinstance(offsets, list) else kind_of(offsets)
        found.add("header.offsets", f'the data_offsets of tensor "{name}" are {what}, not two numbers', tensor=name)
        return None
    for offset in offsets:
        if not _is_whole(offset):
            what = kind_of(offset)
            found.add("header.offsets", f'a data offset of tensor "{name}" is {what}, not a whole number', tensor=name)
            return None
    return offsets[0], offsets[1]


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= _U64


def kind_of(value: object) -> str:
    """What a JSON value is, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "a negative number" if value < 0 else "a number over 64 bits" if value > _U64 else "a number"
    if isinstance(value, float):
        return "a number with a fraction, an exponent or over 64 bits"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
