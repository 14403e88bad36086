"""The only place that parses or prints sizes, shares, rates and durations.

Sizes print in binary units (GiB, MiB, KiB), rates in decimal ones (GB/s), as data sheets of disks and buses do.
A bare `8G` is refused because half its readers take it for 8e9 and half for 2^33.
"""

from __future__ import annotations

import math
import re

from coldctl.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_BINARY = {"ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(?:([kmgt]i)b?|([kmgt])(b?)|b|)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from `8GiB`, `8Gi`, `8GB`, `8589934592` or `8589934592B`. Raises UsageError for all else."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"not a size: {text!r}", hint="write it as 8GiB, 8Gi, 8GB or a number of bytes")
    number, binary, decimal, decimal_b = match.groups()
    if decimal and not decimal_b:
        raise UsageError(
            f"ambiguous size: {text!r}",
            hint=f"write {number}{decimal.upper()}iB (binary) or {number}{decimal.upper()}B (decimal)",
        )
    scale = _BINARY[binary.lower()] if binary else _DECIMAL[decimal.lower()] if decimal else 1
    if scale == 1 and "." in number:
        raise UsageError(f"not a whole number of bytes: {text!r}")
    return round(float(number) * scale) if "." in number else int(number) * scale


def parse_share(text: str) -> float:
    """A share from 0 to 1 from `60%` or `0.6`. Raises UsageError for all else."""
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        share = float(stripped.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UsageError(f"not a share: {text!r}", hint="write it as 60% or 0.6")
    return share


def format_size(nbytes: int) -> str:
    """`nbytes` for a person: `15.3 GiB`, `4.0 MiB`, `12 B`."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def format_rate(bytes_per_second: float) -> str:
    """A rate for a person, decimal: `1.84 GB/s`, `93 MB/s`, `12 kB/s`."""
    if bytes_per_second >= 999.5e6:
        return f"{bytes_per_second / 1e9:.2f} GB/s"
    if bytes_per_second >= 999.5e3:
        return f"{bytes_per_second / 1e6:.3g} MB/s"
    return f"{bytes_per_second / 1e3:.3g} kB/s"


def format_share(part: int, whole: int) -> str:
    """`part` of `whole` in per cent, rounded down, so that 100 % is said only of all: `99.9 %`."""
    if whole == 0:
        return "100 %"
    tenths = part * 1000 // whole
    return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"


def format_ratio(ratio: float) -> str:
    """A measured ratio in per cent, rounded down as `format_share` does: `79.9 %`, `104 %`."""
    return format_share(round(ratio * 1e9), 10**9)


def format_countdown(seconds: float) -> str:
    """What is left of an estimate, in whole seconds, rounded up: `6 s`, `4 min 07 s`."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 60 else format_duration(whole)


def format_duration(seconds: float) -> str:
    """A duration for a person: `0.42 s`, `12.3 s`, `4 min 07 s`, `1 h 02 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_moment(seconds: float) -> str:
    """A duration or a point in time that may be short, or before zero: `0.042 ms`, `85 ms`, `-1.50 s`, `4 min 07 s`."""
    if seconds < 0:
        return f"-{format_moment(-seconds)}"
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.0995 else format_duration(seconds)
