"""Digests: BLAKE3 against its published vectors, and block sums against plain Python integers."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldctl.loader.format.header import Tensor
from coldctl.loader.scan import BoolScan
from coldctl.loader.sink import Digest, Digests, Tee
from coldctl.loader.source import LocalFile

MIB = 1 << 20
SOURCE = LocalFile("model.safetensors", "/weights/model.safetensors", (1, 2, 3, 4))

# From test_vectors.json of the BLAKE3 repository: the input is the bytes 0, 1, … 250, 0, 1, …
BLAKE3_VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


def digest_of(data: bytes, piece_bytes: int = MIB, *, sums: bool = True) -> Digest:
    sink = Digests(sums=sums)
    give(sink, data, piece_bytes)
    return sink.of["model.safetensors", "t"]


def give(sink: Digests | Tee | BoolScan, data: bytes, piece_bytes: int, name: str = "t", dtype: str = "U8") -> None:
    """Hand `data` on as a reader does: an empty tensor in one empty piece."""
    tensor = Tensor(name, dtype, (len(data),), 0, len(data))
    for start in range(0, len(data), piece_bytes) or [0]:
        sink.accept(SOURCE, tensor, start, memoryview(data)[start : start + piece_bytes])


def sums_by_hand(data: bytes) -> str:
    """32 hex digits for each 4 MiB: the sum of the words, and of the words times their place, counted from 1."""
    text = ""
    for begin in range(0, len(data), 4 * MIB):
        block = data[begin : begin + 4 * MIB]
        block += bytes(-len(block) % 8)
        words = struct.unpack(f"<{len(block) // 8}Q", block)
        plain = sum(words) % 2**64
        weighted = sum(place * word for place, word in enumerate(words, start=1)) % 2**64
        text += f"{plain:016x}{weighted:016x}"
    return text


@pytest.mark.parametrize("length", BLAKE3_VECTORS)
def test_digests_are_those_that_blake3_publishes(length: int) -> None:
    data = bytes(n % 251 for n in range(length))
    assert digest_of(data).b3.hex() == BLAKE3_VECTORS[length]
    assert digest_of(data, piece_bytes=64, sums=False).b3.hex() == BLAKE3_VECTORS[length]


def test_block_sums_of_small_tensors_worked_out_by_hand() -> None:
    assert digest_of(b"").block_sums == ""
    assert digest_of(b"\x05").block_sums == f"{5:016x}{5:016x}"
    assert digest_of(struct.pack("<3Q", 7, 1, 2)).block_sums == f"{10:016x}{7 + 2 + 6:016x}"
    # The last word is the one byte 3: 2 * 3 more.
    assert digest_of(struct.pack("<Q", 7) + b"\x03").block_sums == f"{10:016x}{13:016x}"


def test_block_sums_wrap_at_64_bits() -> None:
    data = b"\xff" * 24
    # Three times -1, and -(1 + 2 + 3), modulo 2^64.
    assert digest_of(data).block_sums == f"{2**64 - 3:016x}{2**64 - 6:016x}"


@pytest.mark.parametrize("nbytes", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 5])
def test_each_4_mib_has_sums_of_its_own(nbytes: int) -> None:
    data = random.Random(nbytes).randbytes(nbytes)
    found = digest_of(data).block_sums
    assert found == sums_by_hand(data)
    assert len(found) == 32 * -(-nbytes // (4 * MIB))


@settings(max_examples=50)
@given(st.binary(max_size=300), st.sampled_from([8, 16, 64, MIB]))
def test_block_sums_do_not_depend_on_the_pieces(data: bytes, piece_bytes: int) -> None:
    assert digest_of(data, piece_bytes).block_sums == sums_by_hand(data)


def test_sums_are_left_out_where_nobody_wants_them() -> None:
    assert digest_of(b"abc" * 100, sums=False).block_sums == ""


def test_pieces_of_several_tensors_may_come_mixed() -> None:
    sink = Digests(sums=True)
    first, second = bytes(range(200)), bytes(range(100, 220))
    for name, data, start, end in [
        ("a", first, 0, 64), ("b", second, 0, 8), ("a", first, 64, 128), ("b", second, 8, 120), ("a", first, 128, 200),
    ]:  # fmt: skip
        sink.accept(SOURCE, Tensor(name, "U8", (len(data),), 0, len(data)), start, memoryview(data)[start:end])
    assert sink.of == {
        ("model.safetensors", "a"): digest_of(first),
        ("model.safetensors", "b"): digest_of(second),
    }


def test_a_tensor_that_is_read_again_is_digested_anew() -> None:
    sink = Digests(sums=True)
    tensor = Tensor("t", "U8", (96,), 0, 96)
    sink.accept(SOURCE, tensor, 0, memoryview(bytes(64)))
    give(sink, bytes(range(96)), 32)
    assert sink.of["model.safetensors", "t"] == digest_of(bytes(range(96)))


def test_equal_names_in_two_files_are_two_tensors() -> None:
    sink = Digests(sums=False)
    tensor = Tensor("t", "U8", (1,), 0, 1)
    sink.accept(LocalFile("1", "/1", (0, 0, 0, 0)), tensor, 0, memoryview(b"\0"))
    sink.accept(LocalFile("2", "/2", (0, 0, 0, 0)), tensor, 0, memoryview(b"\1"))
    assert sink.of["1", "t"] != sink.of["2", "t"]


def test_a_tee_gives_every_piece_to_all() -> None:
    one, two = Digests(sums=True), Digests(sums=False)
    give(Tee(one, two), bytes(range(250)), 96)
    assert one.of["model.safetensors", "t"] == digest_of(bytes(range(250)))
    assert two.of["model.safetensors", "t"].b3 == one.of["model.safetensors", "t"].b3


def test_the_scan_finds_booleans_that_are_neither_0_nor_1() -> None:
    scan = BoolScan()
    give(scan, bytes([0, 1] * 50), 10, "fine", "BOOL")
    give(scan, bytes([0] * 99 + [2]), 10, "odd", "BOOL")
    give(scan, b"", 10, "empty", "BOOL")
    give(scan, bytes([255] * 10), 10, "bytes", "U8")
    assert scan.found == {("model.safetensors", "odd")}
