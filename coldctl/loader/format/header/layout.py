"""From entries to tensors: each has the bytes that its dtype and shape say, and together they cover the data."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from coldctl.loader.format.dtypes import BITS
from coldctl.loader.format.header.entries import Entries
from coldctl.loader.format.header.model import Entry, Tensor
from coldctl.loader.format.rules import Findings

MOST_DIMENSIONS = 64
_U64 = 2**64 - 1
_FEW_DIMENSIONS = 8

# (begin, end, name), counted from the end of the header
Span = tuple[int, int, str]


def lay_out(entries: Entries, header_bytes: int, size_bytes: int, found: Findings) -> list[Tensor]:
    """The tensors by (offset, size, name), with every fault in `found`. To be used only when there is none."""
    for name in _odd(entries):
        _check(name, entries.tensors[name], found)
    spans = [(*entry.data_offsets, name) for name, entry in entries.tensors.items()]
    spans += [(*offsets, name) for name, offsets in entries.misfits.items()]
    forward = [span for span in spans if span[0] <= span[1]]
    forward.sort()
    _check_cover(forward, size_bytes - header_bytes, entries.complete and len(forward) == len(spans), found)
    if found.errors:
        return []
    return [
        Tensor(name, entry.dtype, entry.shape, header_bytes + begin, end - begin)
        for begin, end, name in forward
        for entry in (entries.tensors[name],)
    ]


def _odd(entries: Entries) -> Iterator[str]:
    """The tensors with whose entry something may be wrong or even odd: those to look at closer.

    Bytes that match a product without a zero leave no room for overflow, so few dimensions need no other check. One
    loop without a call for each, since a header may have 90,000.
    """
    for name, entry in entries.tensors.items():
        begin, end = entry.data_offsets
        shape = entry.shape
        if (
            begin >= end
            or len(shape) > _FEW_DIMENSIONS
            or prod(shape) * BITS.get(entry.dtype, 0) != (end - begin) * 8
            or "\0" in name
            or name == ""
        ):
            yield name


def _check(name: str, entry: Entry, found: Findings) -> None:
    if name == "":
        found.add("header.name", "a tensor has an empty name", tensor=name)
    if "\0" in name:
        found.add("header.name", f'the name of tensor "{name}" holds a NUL', tensor=name)
    if len(entry.shape) > MOST_DIMENSIONS:
        found.add("header.rank", f'tensor "{name}" has {len(entry.shape):,} dimensions', tensor=name)
    begin, end = entry.data_offsets
    if begin > end:
        found.add("header.offsets", f'tensor "{name}" ends at {end} before it begins at {begin}', tensor=name)
    bits = BITS.get(entry.dtype)
    if bits is None:
        found.add("header.dtype", f'tensor "{name}" has dtype "{entry.dtype}", which safetensors lacks', tensor=name)
        return
    what = f'tensor "{name}" is {entry.dtype} {_shape_text(entry.shape)}'
    tensor_bits = _tensor_bits(entry.shape, bits)
    if tensor_bits is None:
        found.add("header.overflow", f"{what}, whose size in bits does not fit 64 bits", tensor=name)
    elif tensor_bits % 8:
        found.add("header.partial-byte", f"{what}, which is {tensor_bits} bits and not whole bytes", tensor=name)
    elif begin <= end and tensor_bits // 8 != end - begin:
        needs = tensor_bits // 8
        message = f"{what}, which takes {needs:,} bytes, but its data_offsets span {end - begin:,}"
        found.add("header.size-mismatch", message, tensor=name)


def _tensor_bits(shape: tuple[int, ...], bits: int) -> int | None:
    """Bits of all elements; None when they, or the dimensions other than zero alone, are more than a u64 counts.

    A zero does not excuse the rest: whether it comes first must not decide, and no framework holds such dimensions.
    """
    product = bits
    for dimension in shape:
        product *= dimension or 1
        if product > _U64:
            return None
    return 0 if 0 in shape else product


def _shape_text(shape: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, shape[:_FEW_DIMENSIONS]))
    return f"[{shown}, … {len(shape):,} dimensions]" if len(shape) > _FEW_DIMENSIONS else f"[{shown}]"


def _check_cover(spans: list[Span], data_bytes: int, complete: bool, found: Findings) -> None:
    """Whether `spans`, in order, cover the data without overlap, gap or tail. `complete`: they are all there are."""
    reach, last = 0, ""
    disjoint = True
    for begin, end, name in spans:
        if begin == reach:
            reach, last = end, name
            continue
        disjoint = False
        if begin < reach:
            shared = f'begins at {begin:,} inside tensor "{last}", which ends at {reach:,}'
            found.add("header.overlap", f'tensor "{name}" {shared}', tensor=name)
        elif begin > reach and complete:
            after = f'after tensor "{last}"' if last else "at the start of the data"
            found.add("header.gap", f"{begin - reach:,} bytes {after} belong to no tensor", tensor=name)
        if end > reach:
            reach, last = end, name
    if reach > data_bytes:
        _report_past_end(spans, reach, data_bytes, disjoint and complete, found)
    elif reach < data_bytes and complete:
        _report_tail(data_bytes - reach, last, found)


def _past_end(spans: list[Span], data_bytes: int) -> Iterator[Span]:
    return (span for span in spans if span[1] > data_bytes)


def _report_past_end(spans: list[Span], reach: int, data_bytes: int, whole: bool, found: Findings) -> None:
    """A layout that is `whole` but longer than the file was cut; else each offset is wrong by itself."""
    if not whole:
        for _, end, name in _past_end(spans, data_bytes):
            message = f'tensor "{name}" ends at {end:,}, but there are {data_bytes:,} bytes of data'
            found.add("header.offsets", message, tensor=name)
        return
    _, _, first = next(_past_end(spans, data_bytes))
    missing = f"{reach - data_bytes:,} of {reach:,} bytes of data are missing"
    found.add("file.truncated", f'{missing}: the first tensor that is cut off is "{first}"', tensor=first)


def _report_tail(extra: int, last: str, found: Findings) -> None:
    noun = "byte follows" if extra == 1 else "bytes follow"
    if last:
        message = f'{extra:,} {noun} the last tensor "{last}": the tensors are whole, and the file is too long'
    else:
        message = f"{extra:,} {noun} the header, and no tensor covers them"
    found.add("header.tail", message, hint=f"cut the last {extra} bytes off (truncate -s -{extra} FILE)")
