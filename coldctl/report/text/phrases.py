"""Wordings that several reports share, so that one thing is called by one name."""

from __future__ import annotations

from coldctl.report.escape import escape
from coldctl.results.facts import OrderFacts
from coldctl.units import format_duration, format_rate, format_share, format_size


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `12,000 tensors`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size_and_share(part: int | None, whole: int, reason: str | None = None) -> str:
    """`3.1 GiB (20 %)`, or `unknown (why)`."""
    if part is None:
        return f"unknown ({escape(reason)})" if reason else "unknown"
    return f"{format_size(part)} ({format_share(part, whole)})"


def time_and_rate(nbytes: int, seconds: float) -> str:
    """`12.3 s (1.30 GB/s)`; no rate where nothing was moved or no time passed."""
    if nbytes <= 0 or seconds <= 0:
        return format_duration(seconds)
    return f"{format_duration(seconds)} ({format_rate(nbytes / seconds)})"


def order(name: str, facts: OrderFacts | None, nbytes: int) -> str:
    """`order name`, `order layers (32 layers)`, `order attention-first (32 layers, 18 % of bytes are attention)`."""
    if facts is None:
        return f"order {name}"
    found = count(facts.layers, "layer") if facts.layers else "no layer in the names, so all is one"
    if name == "attention-first":
        found += f", {format_share(facts.attention_bytes, nbytes)} of bytes are attention"
    return f"order {name} ({found})"


def extents(found: int | None, ideal: int | None, contiguous: bool | None, reason: str | None) -> str:
    """`3 runs, 3 at best`, `900 runs, 3 at best: fragmented`, `1 run, not judged: why`, `unknown: why`."""
    why = f": {escape(reason)}" if reason else ""
    if found is None:
        return f"unknown{why}"
    runs = count(found, "run")
    if ideal is None:
        return f"{runs}, not judged{why}"
    return f"{runs}, {ideal:,} at best" + (": fragmented" if contiguous is False else "")


def residency_method(method: str | None, bound_bytes: int) -> str:
    """What qualifies a resident count: nothing for an exact one, the error bound for a sampled one."""
    return f", sampled, within {format_size(bound_bytes)}" if method == "sampled" else ""
