"""Why mode auto read as it did, in a sentence: by the bytes of each cause, as they were decided."""

from __future__ import annotations

from collections.abc import Mapping

from coldctl.loader.load.route import Cause

_CALLED: Mapping[Cause, str] = {
    "direct": "was not in the page cache and was read directly",
    "ends": "lies in parts of pages, which cannot be read directly",
    "cached": "was in the page cache",
    "slower": "was not in the page cache, and was read through it, which was faster or had to be tried",
    "refused": "is where no direct reads are taken, so it was read through the page cache",
    "network": "is on a network filesystem, so it was read through the page cache",
    "untold": "was read through the page cache, since the kernel does not tell what is in it",
    "moved": "is placed otherwise than in its file, so it was read through the page cache (coldctl repack aligns it)",
    "short": "is in runs too short to be placed as in their files, so it was read through the page cache",
    "gathered": "was gathered in strips, through the page cache",
    "plain": "was copied plainly, through ordinary memory",
}


def why(caused: Mapping[Cause, int]) -> str:
    """The causes by their share of all bytes, largest first; those that round to no per cent go without saying."""
    total_bytes = sum(caused.values())
    if not total_bytes:
        return "there was nothing to read"
    ordered = sorted(caused.items(), key=lambda item: item[1], reverse=True)
    told = [(round(100 * nbytes / total_bytes), nbytes, _CALLED[cause]) for cause, nbytes in ordered]
    told = [each for each in told if each[0]]
    if len(told) == 1:
        _, nbytes, called = told[0]
        return f"{'all' if nbytes == total_bytes else 'nearly all'} of it {called}"
    return "; ".join(f"{share} % {called}" for share, _, called in told)
