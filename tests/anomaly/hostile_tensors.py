"""Files whose JSON is well formed, and whose tensors are wrong or odd: offsets, shapes, dtypes, cover, names."""

from __future__ import annotations

from tests.anomaly.hostile import (
    GOOD,
    FileRow,
    accept,
    entry,
    file_of,
    raw_entry,
    reject,
)

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_OFFSETS = [
    *(
        reject(f"offsets_{name}", "header.offsets", raw_entry(offsets=json_text), "w")
        for name, json_text in {
            "three": "[0,4,8]",
            "one": "[4]",
            "none": "[]",
            "null": "null",
            "object": '{"begin":0,"end":4}',
            "negative": "[-4,0]",
            "minus_zero": "[-0,4]",
            "float": "[0.0,4.0]",
            "exponent": "[0,4e0]",
            "exponent_lengthens": "[0,4e0 ]",
            "bool": "[false,4]",
            "string": '["0","4"]',
            "holds_null": "[null,4]",
            "over_u64": "[0,18446744073709551620]",
            "five_thousand_digits": f"[0,{'9' * 300}]",
            "backwards": "[4,0]",
            "wraps": "[18446744073709551612,4]",
        }.items()
    ),
    *(
        reject(f"shape_{name}", "header.shape", raw_entry(shape=json_text), "w")
        for name, json_text in {
            "negative": "[-1]",
            "two_negatives": "[-1,-1]",
            "minus_zero": "[-0]",
            "float": "[1.0]",
            "exponent": "[1e0]",
            "bool": "[true]",
            "string": '["1"]',
            "null": "null",
            "holds_null": "[null]",
            "number": "1",
            "nested": "[[1]]",
            "object": "{}",
            "over_u64": "[18446744073709551616]",
        }.items()
    ),
    *(
        reject(f"overflow_{name}", "header.overflow", raw_entry(dtype, shape, offsets), "w")
        for name, dtype, shape, offsets in (
            ("product_is_2_64", '"F32"', "[4294967296,4294967296]", "[0,0]"),
            ("product_is_2_64_plus_1", '"U8"', "[274177,67280421310721]", "[0,1]"),
            ("bits_only", '"F64"', "[2305843009213693952]", "[0,0]"),
            ("huge_then_zero", '"U8"', "[4294967296,4294967296,0]", "[0,0]"),
            ("zero_then_huge", '"U8"', "[0,4294967296,4294967296]", "[0,0]"),
            ("u64_max", '"U8"', "[18446744073709551615]", "[0,4]"),
            ("long_shape", '"U8"', "[" + ",".join(["9223372036854775807"] * 50_000) + "]", "[0,4]"),
        )
    ),
    reject("size_too_small", "header.size-mismatch", raw_entry(shape="[2]"), "w", "takes 8 bytes"),
    reject("size_too_large", "header.size-mismatch", file_of({"w": entry(0, 8, shape=[1])}, 8), "w"),
    reject("dtype_wider", "header.size-mismatch", raw_entry(dtype='"F64"'), "w"),
    reject("zero_elements_four_bytes", "header.size-mismatch", raw_entry(shape="[0]"), "w"),
    reject("one_element_no_bytes", "header.size-mismatch", file_of({"w": entry(0, 0, shape=[1])}, 0), "w"),
    reject("scalar_no_bytes", "header.size-mismatch", file_of({"w": entry(0, 0, shape=[])}, 0), "w"),
    reject("f4_odd", "header.partial-byte", file_of({"w": entry(0, 2, "F4", [3])}, 2), "w"),
    reject("f6_not_whole", "header.partial-byte", file_of({"w": entry(0, 1, "F6_E2M3", [2])}, 1), "w"),
    *(
        reject(f"dtype_{name}", "header.dtype", raw_entry(dtype=json_text), "w")
        for name, json_text in {
            "lower_case": '"f32"',
            "torch": '"torch.float32"',
            "numpy": '"<f4"',
            "empty": '""',
            "number": "32",
            "null": "null",
            "list": '["F32"]',
            "with_space": '"F32 "',
            "unknown": '"F128"',
        }.items()
    ),
    *(accept(f"dtype_{dtype}", file_of({"w": entry(0, bits, dtype, [8])}, bits)) for dtype, bits in _BITS.items()),
]

_COVER = [
    accept("two", file_of({"a": entry(0, 4), "b": entry(4, 8)}, 8)),
    accept("backwards_in_header", file_of({"b": entry(4, 8), "a": entry(0, 4)}, 8)),
    accept("scalar", file_of({"w": entry(0, 4, shape=[])})),
    accept("empty_tensor", file_of({"w": entry(0, 0, shape=[0, 7])}, 0)),
    accept("empty_between", file_of({"b": entry(4, 8), "e": entry(4, 4), "a": entry(0, 4)}, 8)),
    accept("odd_then_f32", file_of({"a": entry(0, 1, "U8", [1]), "b": entry(1, 5)}, 5)),
    accept("filler", file_of({"a": entry(0, 4), "f": entry(4, 4096, "U8", [4092]), "b": entry(4096, 4100)}, 4100)),
    reject("overlap", "header.overlap", file_of({"a": entry(0, 8), "b": entry(4, 12)}, 12), "b"),
    reject("alias", "header.overlap", file_of({"a": entry(0, 4), "b": entry(0, 4)}), "b"),
    reject("inside", "header.overlap", file_of({"a": entry(0, 12), "b": entry(4, 8)}, 12), "b"),
    reject(
        "inside_then_past", "header.overlap", file_of({"a": entry(0, 12), "b": entry(4, 8), "c": entry(8, 16)}, 16), "c"
    ),
    reject("empty_inside", "header.overlap", file_of({"a": entry(0, 8), "e": entry(4, 4)}, 8), "e"),
    reject("gap", "header.gap", file_of({"a": entry(0, 4), "b": entry(8, 12)}, 12), "b", "4 bytes"),
    reject("gap_to_page", "header.gap", file_of({"a": entry(0, 4), "b": entry(4096, 4100)}, 4100), "b", "4,092 bytes"),
    reject("gap_at_start", "header.gap", file_of({"a": entry(4, 8)}, 8), "a"),
    reject("empty_past_end", "header.offsets", file_of({"a": entry(0, 4), "e": entry(900, 900)}), "e"),
    reject("one_byte_tail", "header.tail", GOOD + b"x", says="1 byte follows"),
    reject("tail_to_page", "header.tail", GOOD + bytes(4096 - len(GOOD)), says="tensors are whole"),
    reject(
        "one_byte_short", "file.truncated", file_of({"a": entry(0, 8), "b": entry(8, 16)}, 15), "b", "1 of 16 bytes"
    ),
    reject("no_data", "file.truncated", file_of({"a": entry(0, 8), "b": entry(8, 16)}, 0), "a", "16 of 16 bytes"),
    accept("rank_64", file_of({"w": entry(0, 4, shape=[1] * 64)})),
    accept("rank_65", file_of({"w": entry(0, 4, shape=[1] * 65)}), "header.rank", "w"),
]

_NAMES = [
    accept("name_empty", file_of({"": entry(0, 4)}), "header.name", ""),
    accept("name_nul", file_of({"a\0b": entry(0, 4)}), "header.name", "a\0b"),
    *(
        accept(f"name_{what}", file_of({name: entry(0, 4)}))
        for what, name in {
            "dots": "../../etc/passwd",
            "absolute": "/etc/passwd",
            "newline": "a\nverify: ok",
            "escape_sequence": "\x1b[2J\x1b]0;x\x07",
            "bidi": "a\u202egpj",
            "separator": "a\u2028b",
            "delete": "a\x7fb",
            "emoji": "🔥",
            "quotes": '"},{"',
            "percent": "%s%n{0}{x!r}",
            "long": "n" * 65_536,
            "markup": "[red]x[/red]",
        }.items()
    ),
    accept("names_nfc_nfd", file_of({"\u00e9": entry(0, 4), "e\u0301": entry(4, 8)}, 8)),
    accept("names_lookalike", file_of({"a": entry(0, 4), "\u0430": entry(4, 8)}, 8)),
    accept("name_reserved_twin", file_of({"__METADATA__": entry(0, 4)})),
]

TENSORS: list[FileRow] = [*_OFFSETS, *_COVER, *_NAMES]
