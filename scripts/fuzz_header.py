#!/usr/bin/env python3
"""Mutate safetensors files at random and hold our verdict against the reference library's.

    scripts/fuzz_header.py --seconds 60 --seed 7

Whatever the reference refuses, we must refuse. We may refuse what it takes only under the rules in STRICTER, where the
format's text is on our side. Prints each disagreement with its seed, and exits 1 when there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter

import safetensors

from coldctl.loader.format.header import examine_file
from coldctl.results.verify import Finding

# What the reference takes although the format, or any framework that has to hold the tensor, does not:
STRICTER = {
    "header.first-byte": "white space before the {, which the format forbids",
    "header.duplicate-key": "a key twice: the reference keeps the last",
    "null metadata": "the reference takes it for none",
    "header.overflow": "dimensions too large to multiply, behind a zero",
}

_NUMBERS = (
    "0",
    "1",
    "2",
    "4",
    "7",
    "8",
    "12",
    "16",
    "-1",
    "-0",
    "1.0",
    "4e0",
    "true",
    "null",
    '"4"',
    "[]",
    "{}",
    "NaN",
)
_LARGE = ("4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616")
_DTYPES = ("BOOL", "U8", "F4", "F6_E2M3", "F8_E4M3", "F8_E8M0", "BF16", "F32", "C64", "U64", "F128", "f32", "")
_TOKENS = (
    *("{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "\t", "\f", "\0", "\ufeff", "é", "\U0001f525", "\\u0061"),
    *(
        "\\ud800",
        "\\udc00",
        "\\ud83d\\ude00",
        "\\/",
        "\\x",
        '"w":',
        '"dtype":',
        '"shape":',
        '"data_offsets":',
        '"x":1,',
    ),
    *('"__metadata__":{},', '"__metadata__":null,', '"__metadata__":{"a":"b"},', '"__metadata__":{"a":1},', '"a":"b",'),
)


def main() -> int:
    options = _options()
    descriptor = os.memfd_create("fuzz")
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + options.seconds
    seed = options.seed
    while time.monotonic() < deadline:
        data = mutated(random.Random(seed))
        outcome = compare(data, descriptor)
        counts[outcome] += 1
        if outcome.startswith("DISAGREE"):
            print(f"seed {seed}: {outcome}: {data!r}")
        seed += 1
    for outcome, count in counts.most_common():
        print(f"{count:9,}  {outcome}")
    return 1 if any(outcome.startswith("DISAGREE") for outcome in counts) else 0


def compare(data: bytes, descriptor: int) -> str:
    """What became of one file, in words; it begins with DISAGREE where one of the two is wrong."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    _, findings = examine_file(f"/proc/self/fd/{descriptor}", "fuzz")
    rules = [_reason(found) for found in findings if found.severity == "error"]
    try:
        safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever it raises is its verdict
        return "both refuse" if rules else f"DISAGREE: only the reference refuses: {error}"
    if not rules:
        return "both accept"
    unexplained = [rule for rule in rules if rule not in STRICTER]
    if unexplained and not set(rules) & set(STRICTER):
        return f"DISAGREE: only we refuse: {unexplained}"
    return f"stricter: {next(rule for rule in rules if rule in STRICTER)}"


def _reason(found: Finding) -> str:
    """The rule, told apart where only one way of breaking it is taken by the reference."""
    return "null metadata" if found.message == "__metadata__ is null, not an object" else found.rule


def mutated(rng: random.Random) -> bytes:
    """A small file, valid at first, then changed in up to four places. The length prefix mostly stays true."""
    header, data = _valid(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        header = rng.choice((_swap_token, _insert, _delete, _repeat, _flip))(header, rng)
    length = len(header)
    if rng.random() < 0.05:
        length = rng.choice((0, 1, length - 1, length + 1, 100_000_001, 2**63, 2**64 - 1)) % 2**64
    if rng.random() < 0.1:
        data = data[: -rng.randint(1, 9)] if rng.random() < 0.5 else data + bytes(rng.randint(1, 9))
    return length.to_bytes(8, "little") + header + data


def _valid(rng: random.Random) -> tuple[bytes, bytes]:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}} if rng.random() < 0.4 else {}
    end = 0
    for i in range(rng.randint(0, 4)):
        dtype, bits = rng.choice((("U8", 8), ("F4", 4), ("F6_E2M3", 6), ("BF16", 16), ("F32", 32), ("C64", 64)))
        shape = rng.choice(([8], [2, 4], [1, 8, 1], [0], [3, 0], [8, 8], [16]))
        elements = 1
        for dimension in shape:
            elements *= dimension
        begin, end = end, end + elements * bits // 8
        entries[rng.choice(("w", "é", "a/b", "x.weight", '"', "\n", "")) + str(i)] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, end],
        }
    pairs = list(entries.items())
    rng.shuffle(pairs)
    text = json.dumps(
        dict(pairs), ensure_ascii=rng.random() < 0.5, separators=rng.choice(((",", ":"), (", ", ": "), None))
    )
    return text.encode() + b" " * rng.choice((0, 0, 3)), bytes(end)


def _swap_token(header: bytes, rng: random.Random) -> bytes:
    """Another number, dtype or bracket in the place of one that is there."""
    text = header.decode("utf-8", "surrogateescape")
    spots = [i for i, c in enumerate(text) if c.isdigit() or c in "FUBC[]{}"]
    if not spots:
        return header
    i = rng.choice(spots)
    after = i + 1
    if text[i].isdigit():
        while after < len(text) and text[after].isdigit():
            after += 1
        new = rng.choice(_NUMBERS + _LARGE)
    elif text[i].isalpha():
        after = max(text.find('"', i), i)
        new = rng.choice(_DTYPES)
    else:
        new = rng.choice(("[", "]", "{", "}", ""))
    return (text[:i] + new + text[after:]).encode("utf-8", "surrogateescape")


def _insert(header: bytes, rng: random.Random) -> bytes:
    i = rng.choice((0, 1, len(header), rng.randint(0, len(header))))
    return header[:i] + rng.choice(_TOKENS).encode() + header[i:]


def _delete(header: bytes, rng: random.Random) -> bytes:
    i = rng.randint(0, len(header))
    return header[:i] + header[i + rng.choice((1, 1, 2, 5, 20)) :]


def _repeat(header: bytes, rng: random.Random) -> bytes:
    i, j = sorted((rng.randint(0, len(header)), rng.randint(0, len(header))))
    return header[:j] + rng.choice((b"", b",")) + header[i:j] + header[j:]


def _flip(header: bytes, rng: random.Random) -> bytes:
    if not header:
        return header
    i = rng.randrange(len(header))
    return header[:i] + bytes([header[i] ^ (1 << rng.randrange(8))]) + header[i + 1 :]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="how long to go on (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each file has the next (default 0)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
