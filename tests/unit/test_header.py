"""The header parser and builder, against files that the safetensors library or plain json and struct wrote."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from coldctl.errors import FaultError
from coldctl.loader.format.header import (
    MAX_HEADER_BYTES,
    Header,
    Tensor,
    build,
    examine_file,
    inspect_file,
    parse,
    read_header,
)
from coldctl.results.verify import Finding

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 9), max_size=4)


def u8_entry(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


def parsed(text: str | bytes, data_bytes: int) -> tuple[Header | None, list[Finding]]:
    header = text if isinstance(text, bytes) else text.encode()
    return parse(header, 8 + len(header) + data_bytes, "f")


def rules(findings: Sequence[Finding]) -> list[tuple[str, str | None]]:
    return [(found.rule, found.tensor) for found in findings]


class TestRead:
    def test_what_the_library_wrote(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(5, np.uint8), "s": np.float64(2)}
        safetensors.numpy.save_file({k: np.asarray(v) for k, v in arrays.items()}, path, {"format": "np", "é": "ü"})
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])

        header = read_header(str(path))

        assert header.header_bytes == 8 + length
        assert header.metadata == {"format": "np", "é": "ü"}
        assert header.warnings == ()
        assert {t.name: (t.dtype, t.shape) for t in header.tensors} == {
            "a": ("U8", (5,)),
            "b": ("F32", (2, 3)),
            "s": ("F64", ()),
        }
        for tensor in header.tensors:
            stored = data[tensor.offset_bytes : tensor.offset_bytes + tensor.nbytes]
            assert stored == np.asarray(arrays[tensor.name]).tobytes()

    def test_tensors_are_sorted_by_place_size_and_name(self) -> None:
        entries = {"z": u8_entry(0, 2), "b": u8_entry(2, 2), "c": u8_entry(2, 3), "a": u8_entry(2, 2)}
        header, findings = parsed(json.dumps(entries), 3)
        assert header is not None
        assert findings == []
        assert [tensor.name for tensor in header.tensors] == ["z", "a", "b", "c"]

    def test_absent_and_empty_metadata_differ(self) -> None:
        absent, _ = parsed("{}", 0)
        empty, _ = parsed('{"__metadata__":{}}', 0)
        assert absent is not None
        assert empty is not None
        assert absent.metadata is None
        assert empty.metadata == {}

    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")])
    @pytest.mark.parametrize("ensure_ascii", [True, False])
    def test_spelling_does_not_matter(self, separators: tuple[str, str], ensure_ascii: bool) -> None:
        document = {"__metadata__": {"k/é": "\n🔥\\"}, "é/\x7f\u2028": u8_entry(0, 3), "b": u8_entry(3, 3)}
        text = json.dumps(document, separators=separators, ensure_ascii=ensure_ascii)
        header, findings = parsed(text, 3)
        assert findings == []
        assert header is not None
        assert header.metadata == {"k/é": "\n🔥\\"}
        start = 8 + len(text.encode())
        assert header.tensors == (
            Tensor("é/\x7f\u2028", "U8", (3,), start, 3),
            Tensor("b", "U8", (0,), start + 3, 0),
        )

    def test_ninety_thousand_tensors(self) -> None:
        entries = {f"model.layers.{i}.mlp.experts.down_proj.weight": u8_entry(i * 7, i * 7 + 7) for i in range(90_000)}
        text = json.dumps(entries, separators=(",", ":"))
        header, findings = parsed(text, 630_000)
        assert findings == []
        assert header is not None
        assert len(header.tensors) == 90_000
        assert header.tensors[89_999].offset_bytes == 8 + len(text) + 629_993

    def test_a_header_at_the_cap(self) -> None:
        header, findings = parsed(b"{}".ljust(100_000_000), 0)
        assert findings == []
        assert header is not None
        assert header.header_bytes == 100_000_008

    def test_only_the_header_is_read(self, tmp_path: Path) -> None:
        text = json.dumps({"w": u8_entry(0, 1 << 36)}).encode()
        path = tmp_path / "huge.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + (1 << 36))
        tracemalloc.start()
        header = read_header(str(path))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert header.tensors[0].nbytes == 1 << 36
        assert peak_bytes < 1 << 20

    def test_a_length_is_checked_before_it_is_believed(self, tmp_path: Path) -> None:
        path = tmp_path / "f.safetensors"
        path.write_bytes((99_999_999).to_bytes(8, "little") + b"{}")
        tracemalloc.start()
        _, findings = examine_file(str(path))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert rules(findings) == [("header.truncated", None)]
        assert "99,999,997 of" in findings[0].message
        assert peak_bytes < 1 << 20

    @pytest.mark.skipif(not Path("/sys/kernel/uevent_seqnum").exists(), reason="no sysfs here")
    def test_a_file_that_ends_before_its_size(self) -> None:
        """As every file of sysfs does: it says 4096 bytes and has a few."""
        _, findings = examine_file("/sys/kernel/uevent_seqnum")
        assert rules(findings) == [("file.shrank", None)]

    def test_identity_is_that_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "f.safetensors"
        path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        (tmp_path / "link.safetensors").symlink_to(path)
        status = path.stat()
        looked = inspect_file(str(tmp_path / "link.safetensors"), "shard")
        assert looked.identity == (status.st_dev, status.st_ino, 10, status.st_mtime_ns)
        assert looked.size_bytes == 10


class TestFaults:
    def test_read_header_raises_the_first(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        text = json.dumps({"a": u8_entry(0, 4), "b": {**u8_entry(4, 8), "dtype": "X"}, "c": u8_entry(9, 9)}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(9))
        with pytest.raises(FaultError) as raised:
            read_header(str(path), "shard-1")
        fault = raised.value
        assert (fault.rule, fault.code, fault.file, fault.tensor) == ("header.dtype", "header.dtype", "shard-1", "b")
        assert fault.exit_code == 4
        assert fault.hint

    def test_all_independent_faults_in_header_order_then_by_place(self) -> None:
        document = {
            "__metadata__": {"n": 1},
            "shape": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 4]},
            "dtype": {"dtype": "u8", "shape": [4], "data_offsets": [4, 8]},
            "size": {"dtype": "F32", "shape": [1], "data_offsets": [8, 11]},
            "overlap": u8_entry(10, 12),
            "gap": u8_entry(14, 16),
        }
        header, findings = parsed(json.dumps(document), 19)
        assert header is None
        assert rules(findings) == [
            ("header.metadata", None),
            ("header.shape", "shape"),
            ("header.dtype", "dtype"),
            ("header.size-mismatch", "size"),
            ("header.overlap", "overlap"),
            ("header.gap", "gap"),
            ("header.tail", None),
        ]

    def test_unknown_offsets_make_no_false_gap(self) -> None:
        document = {"a": u8_entry(0, 4), "b": {"dtype": "U8", "shape": [4]}, "c": u8_entry(8, 12)}
        _, findings = parsed(json.dumps(document), 12)
        assert rules(findings) == [("header.entry", "b")]

    def test_a_cut_is_one_fault_and_names_the_first_tensor_cut(self) -> None:
        entries = {name: u8_entry(i * 100, i * 100 + 100) for i, name in enumerate("abcdef")}
        _, findings = parsed(json.dumps(entries), 250)
        assert rules(findings) == [("file.truncated", "c")]
        assert "350 of 600 bytes" in findings[0].message

    def test_a_tail_says_how_to_cut_it(self) -> None:
        _, findings = parsed(json.dumps({"a": u8_entry(0, 4)}), 4 + 30)
        assert rules(findings) == [("header.tail", None)]
        assert "truncate -s -30" in findings[0].hint

    def test_the_first_hundred_are_listed_and_the_rest_counted(self) -> None:
        entries = {f"t{i}": {**u8_entry(i, i + 1), "dtype": "X"} for i in range(250)}
        _, findings = parsed(json.dumps(entries), 250)
        assert rules(findings[:100]) == [("header.dtype", f"t{i}") for i in range(100)]
        assert rules(findings[100:]) == [("file.more", None)]
        assert "150 more" in findings[100].message

    def test_warnings_cannot_crowd_out_an_error(self) -> None:
        entries: dict[str, object] = {f"t{i}": {**u8_entry(i, i + 1), "x": 0} for i in range(300)}
        entries["bad"] = {**u8_entry(300, 301), "dtype": "X"}
        header, findings = parsed(json.dumps(entries), 301)
        assert header is None
        assert [found.rule for found in findings if found.severity == "error"] == ["header.dtype"]

    @pytest.mark.parametrize(
        "number", ["0.0", "0e0", "-0", "1e3", "1E2", "1.5", "true", "null", '"1"', "-1", "9223372036854775808"]
    )
    def test_what_is_not_a_whole_number(self, number: str) -> None:
        for text in (
            f'{{"w":{{"dtype":"U8","shape":[{number}],"data_offsets":[0,1]}}}}',
            f'{{"w":{{"dtype":"U8","shape":[1],"data_offsets":[{number},1]}}}}',
        ):
            header, findings = parsed(text, 1)
            assert header is None
            assert findings[0].tensor == "w"

    @given(
        before=st.dictionaries(NAMES, st.just(u8_entry(0, 0)), max_size=3),
        name=NAMES,
        value=st.sampled_from(["0", "[]", '""', json.dumps(u8_entry(0, 0)), '{"dtype":"U8"}']),
        padding=st.text(" \t\r\n", max_size=200),
        escaped=st.booleans(),
        first=st.booleans(),
    )
    def test_a_name_twice_is_always_found(
        self, before: dict[str, object], name: str, value: str, padding: str, escaped: bool, first: bool
    ) -> None:
        """However the two are spelled, and whatever white space makes up for the bytes that a parser drops."""
        good = json.dumps(u8_entry(0, 0))
        key = "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack("<H", name.encode("utf-16-le")))
        twin = f'"{key}":{value}' if escaped else f"{json.dumps(name, ensure_ascii=False)}:{value}"
        pair = f"{json.dumps(name)}:{good}"
        others = [f"{json.dumps(other)}:{good}" for other in before if other != name]
        pairs = [twin, *others, pair] if first else [pair, *others, twin]
        header, findings = parsed("{" + ",".join(pairs) + padding + "}", 0)
        assert header is None
        assert ("header.duplicate-key", name) in rules(findings)

    @given(
        st.recursive(
            st.text() | st.integers(0, 2**63 - 1), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        )
    )
    def test_encoding_again_never_makes_json_longer(self, document: object) -> None:
        """What the fast path's proof rests on, for the kinds of tokens that can pass its types."""
        for ensure_ascii in (True, False):
            try:
                text = json.dumps(document, separators=(",", ":"), ensure_ascii=ensure_ascii).encode()
            except UnicodeEncodeError:
                continue
            assert len(msgspec.json.encode(document)) <= len(text)


class TestBuild:
    @given(
        tensors=st.dictionaries(NAMES, SHAPES, max_size=5),
        metadata=st.none() | st.dictionaries(NAMES, NAMES, max_size=3),
        align=st.sampled_from([1, 8, 4096]),
    )
    def test_what_is_built_reads_back(
        self, tensors: dict[str, list[int]], metadata: dict[str, str] | None, align: int
    ) -> None:
        wanted = [Tensor(name, "F32", tuple(shape), 0, 4 * int(np.prod(shape))) for name, shape in tensors.items()]
        built = build(wanted, metadata, align)
        size_bytes = len(built) + sum(tensor.nbytes for tensor in wanted)
        assert len(built) % align == 0
        header, findings = parse(built[8:], size_bytes)
        assert [found for found in findings if found.rule != "header.name"] == []
        assert header is not None
        assert header.metadata == metadata
        assert {(t.name, t.shape, t.nbytes) for t in header.tensors} == {(t.name, t.shape, t.nbytes) for t in wanted}
        library = safetensors.deserialize(built + bytes(size_bytes - len(built)))  # type: ignore[no-untyped-call]
        assert {name: tuple(found["shape"]) for name, found in library} == {t.name: t.shape for t in wanted}

    def test_bytes_as_json_and_struct_would_write_them(self) -> None:
        built = build([Tensor("b", "U8", (3,), 0, 3), Tensor("a", "BF16", (2, 1), 0, 4)], {"format": "pt"}, 128)
        text = (
            '{"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
            '"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[3,7]}}'
        )
        assert built == struct.pack("<Q", 248) + text.encode().ljust(248)

    def test_no_metadata_is_not_empty_metadata(self) -> None:
        assert build([], None, 1)[8:] == b"{}"
        assert build([], {}, 1)[8:] == b'{"__metadata__":{}}'

    @pytest.mark.parametrize("name", ["w", "__metadata__"])
    def test_a_name_that_is_taken(self, name: str) -> None:
        tensors = [Tensor("w", "U8", (1,), 0, 1), Tensor(name, "U8", (1,), 0, 1)]
        with pytest.raises(FaultError) as raised:
            build(tensors, None)
        assert (raised.value.rule, raised.value.tensor) == ("header.duplicate-key", name)

    def test_the_cap_counts_the_padding(self) -> None:
        fits = MAX_HEADER_BYTES - len('{"__metadata__":{"k":""}}')
        assert len(build([], {"k": "x" * fits}, 8)) == 8 + MAX_HEADER_BYTES
        with pytest.raises(FaultError) as raised:
            build([], {"k": "x" * fits}, 4096)
        assert raised.value.rule == "header.too-large"


LARGE = 17 << 20
"""Above what is explained in full: such a header's misfits are named without building its values."""


@pytest.mark.parametrize(
    ("text", "rule", "tensor"),
    [
        ('{"a":[' + "[]," * (LARGE // 3) + "[]]}", "header.entry", "a"),
        ('{"__metadata__":{"k":[' + "{}," * (LARGE // 3) + "{}]}}", "header.metadata", None),
        ('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}' + " " * LARGE + ",}", "header.json", None),
    ],
)
def test_large_header_of_tiny_values_is_refused_without_building_them(text: str, rule: str, tensor: str | None) -> None:
    tracemalloc.start()
    header, findings = parsed(text, 1)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header is None
    assert rules(findings) == [(rule, tensor)]
    # A few copies of the text; as Python objects the lists alone would take twenty times as much.
    assert peak_bytes < 5 * LARGE


def test_large_header_with_escapes_is_still_read_exactly() -> None:
    padding = " " * LARGE
    text = '{"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}' + padding + "}"
    header, findings = parsed(text, 1)
    assert header is not None
    assert [tensor.name for tensor in header.tensors] == ["a"]
    assert rules(findings) == []


def test_large_header_with_a_name_twice_is_still_refused() -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    header, findings = parsed('{"a":' + entry + ',"a":' + entry + " " * LARGE + "}", 1)
    assert header is None
    assert rules(findings) == [("header.duplicate-key", "a")]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":%s,"__metadata__":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}',
        '{"__metadata__":{"dtype":"U8","shape":[],"data_offsets":[1,2]},"a":%s}',
        '{"__metadata__":{"k":"v"},"a":%s,"__metadata__":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}',
        '{"__metadata__":{"k":"v},"a":%s}',
        '{"__metadata__":{"k":"v""l":"w"},"a":%s}',
    ],
)
def test_metadata_that_looks_like_a_tensor_or_is_cut_is_no_tensor(text: str) -> None:
    header, findings = parse(text.replace("%s", '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}').encode(), 500)
    assert header is None
    assert findings


@pytest.mark.parametrize("text", ['{"__metadata__":{"k":"a}b,"},"a":%s}', '{"a":%s,"__metadata__":{"k":"a}b,"}}'])
def test_metadata_is_read_wherever_it_stands_and_whatever_it_holds(text: str) -> None:
    raw = text.replace("%s", '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}').encode()
    header, findings = parse(raw, 8 + len(raw) + 1)
    assert header is not None, findings
    assert header.metadata == {"k": "a}b,"}
    assert [tensor.name for tensor in header.tensors] == ["a"]
