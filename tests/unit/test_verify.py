"""verify through its Python API: one flipped bit anywhere is found, and whatever else differs from what was written."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldctl.errors import ChangedError, InputError, StoppedError
from coldctl.events import Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.jobs.verify import VerifyOptions, verify
from coldctl.loader import reader
from coldctl.loader.format.rules import RULES
from coldctl.results.facts import AlignmentCount
from coldctl.results.verify import Finding, VerifyResult
from tests.tiny import Made, Stored, header_of, made, read_shard, shard_bytes, write_shard, write_sharded

MIB = 1 << 20

FIRST = {"model.embed.weight": made("U8", 8192), "model.bias": made("F32", 11), "model.empty": made("F32", 0)}
SECOND = {
    "model.layers.0.q.weight": made("BF16", 3, 1024),
    "model.layers.0.q.scale": made("F32", 1),
    "model.odd": made("U8", 4097),
    "model.flags": Made("BOOL", (4,), b"\0\1\1\0"),
}
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def judge(folder: Path, **options: Any) -> VerifyResult:
    return verify(VerifyOptions(str(folder), **options))


def problems(result: VerifyResult) -> list[tuple[str, str | None, str | None]]:
    return [(found.rule, found.file, found.tensor) for found in result.errors]


@pytest.fixture
def repacked(tmp_path: Path) -> Path:
    """A checkpoint of two files with fillers and a manifest."""
    write_sharded(tmp_path / "source", [FIRST, SECOND], {"format": "pt"})
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target"), align="every"))
    return tmp_path / "target"


def flip(path: Path, byte: int, bit: int) -> None:
    """Turn one bit of a file over, behind its back: neither the size nor the time changes."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def stored_in(folder: Path) -> Iterator[tuple[Path, str, Stored]]:
    for name in FILES:
        for tensor, stored in read_shard(folder / name).items():
            yield folder / name, tensor, stored


def test_what_repack_wrote_is_clean(repacked: Path) -> None:
    result = judge(repacked)
    assert result.findings == []
    assert result.unjudged == []
    assert result.files == 2
    # The three fillers of the second file are checked as well, and are no tensors to count.
    assert result.tensors == result.digests_checked == 7
    assert result.alignment[0] == AlignmentCount("4096", 7, 8192 + 44 + 6144 + 4 + 4097 + 4)
    assert result.digests_reason is None
    assert result.bytes == sum((repacked / name).stat().st_size for name in FILES)


def test_one_flipped_bit_of_any_tensor_or_filler_is_found_and_named(repacked: Path) -> None:
    chance = random.Random(1)
    fillers = 0
    for path, name, stored in list(stored_in(repacked)):
        if not stored.data:
            continue
        last = len(stored.data) - 1
        for place in {0, last, last // 2, chance.randrange(last + 1)}:
            bit = chance.randrange(8)
            flip(path, stored.offset + place, bit)
            assert problems(judge(repacked)) == [("digest.mismatch", path.name, name)], (name, place, bit)
            flip(path, stored.offset + place, bit)
        fillers += name.startswith("_coldctl_pad.")
    assert fillers == 3
    assert judge(repacked).findings == []


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_of_the_length_is_found(repacked: Path, name: str) -> None:
    for byte in range(8):
        for bit in range(8):
            flip(repacked / name, byte, bit)
            assert name in {file for _, file, _ in problems(judge(repacked))}, (byte, bit)
            flip(repacked / name, byte, bit)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_of_the_header_is_found(repacked: Path, name: str) -> None:
    path = repacked / name
    begins, _ = header_of(path)
    json_ends = len(path.read_bytes()[:begins].rstrip(b" "))
    chance = random.Random(2)
    padding = [json_ends, begins - 1, *chance.sample(range(json_ends, begins), 20)]
    for byte in [*range(8, json_ends), *padding]:
        bit = chance.randrange(8)
        flip(path, byte, bit)
        assert problems(judge(repacked)), (byte, bit)
        flip(path, byte, bit)


def test_all_bits_of_a_padding_byte_are_found(repacked: Path) -> None:
    path = repacked / FILES[0]
    last = header_of(path)[0] - 1
    for bit in range(8):
        flip(path, last, bit)
        assert problems(judge(repacked)), bit
        flip(path, last, bit)


def test_a_flipped_bit_is_found_when_one_file_is_judged_alone(repacked: Path) -> None:
    assert judge(repacked / FILES[1]).findings == []
    stored = read_shard(repacked / FILES[1])["model.odd"]
    flip(repacked / FILES[1], stored.offset + 4096, 7)
    assert problems(judge(repacked / FILES[1])) == [("digest.mismatch", FILES[1], "model.odd")]
    assert judge(repacked / FILES[0]).findings == []


def test_every_fault_is_told_in_one_run(repacked: Path) -> None:
    first, second = read_shard(repacked / FILES[0]), read_shard(repacked / FILES[1])
    flip(repacked / FILES[0], first["model.bias"].offset, 0)
    flip(repacked / FILES[0], first["model.embed.weight"].offset, 0)
    flip(repacked / FILES[1], second["model.odd"].offset, 0)
    assert sorted(problems(judge(repacked))) == [
        ("digest.mismatch", FILES[0], "model.bias"),
        ("digest.mismatch", FILES[0], "model.embed.weight"),
        ("digest.mismatch", FILES[1], "model.odd"),
    ]


def test_a_finding_says_where_what_and_what_to_do(repacked: Path) -> None:
    stored = read_shard(repacked / FILES[1])["model.odd"]
    flip(repacked / FILES[1], stored.offset, 0)
    assert judge(repacked).findings == [
        Finding(
            "digest.mismatch",
            "error",
            FILES[1],
            "model.odd",
            f"bytes {stored.offset} to {stored.offset + 4097} differ from what was written",
            RULES["digest.mismatch"].hint,
        )
    ]


def swap_names(path: Path, one: str, other: str) -> None:
    """Exchange two names of equal length in a header, in the same bytes."""
    raw = path.read_bytes()
    begins, _ = header_of(path)
    text = raw[8:begins].replace(one.encode(), b"\0").replace(other.encode(), one.encode())
    path.write_bytes(raw[:8] + text.replace(b"\0", other.encode()) + raw[begins:])


def test_two_tensors_that_changed_places_are_found(tmp_path: Path) -> None:
    tensors = {"a": made("U8", 64, seed=1), "b": made("U8", 64, seed=2)}
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target")))
    path = tmp_path / "target" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    begins, _ = header_of(path)
    raw[begins : begins + 64], raw[begins + 64 :] = raw[begins + 64 :], raw[begins : begins + 64]
    path.write_bytes(raw)
    assert sorted(problems(judge(tmp_path / "target"))) == [
        ("digest.mismatch", "model.safetensors", "a"),
        ("digest.mismatch", "model.safetensors", "b"),
    ]
    swap_names(path, '"a"', '"b"')
    assert {(rule, tensor) for rule, _, tensor in problems(judge(tmp_path / "target"))} >= {
        ("manifest.tensor", "a"),
        ("manifest.tensor", "b"),
    }


def test_metadata_that_changed_are_found_by_the_root(repacked: Path) -> None:
    path = repacked / FILES[0]
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"format":"pt"', b'"format":"tf"', 1))
    assert problems(judge(repacked)) == [("digest.root", FILES[0], None)]


def test_the_same_tensors_in_another_header_are_found_by_the_root(repacked: Path) -> None:
    path = repacked / FILES[0]
    raw = path.read_bytes()
    begins, document = header_of(path)
    text = json.dumps(dict(reversed(document.items())), separators=(",", ":")).encode().ljust(begins - 8)
    path.write_bytes(struct.pack("<Q", begins - 8) + text + raw[begins:])
    assert problems(judge(repacked)) == [("digest.root", FILES[0], None)]


@pytest.mark.parametrize("change", ["append", "truncate", "empty", "remove"])
def test_a_file_of_another_length_is_found(repacked: Path, change: str) -> None:
    path = repacked / FILES[1]
    size = path.stat().st_size
    if change == "append":
        with path.open("ab") as file:
            file.write(b"\0")
    elif change == "remove":
        path.unlink()
    else:
        os.truncate(path, size - 1 if change == "truncate" else 0)
    rule = {"append": "header.tail", "truncate": "file.truncated", "empty": "header.too-short",
            "remove": "index.missing-shard"}[change]  # fmt: skip
    assert (rule, FILES[1]) in {(rule, file) for rule, file, _ in problems(judge(repacked))}


def change_manifest(folder: Path, change: Any) -> None:
    document = json.loads((folder / "coldctl.json").read_text())
    change(document)
    (folder / "coldctl.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


def test_a_file_that_the_manifest_does_not_list_is_found(repacked: Path) -> None:
    change_manifest(repacked, lambda document: document["files"].pop(0))
    assert ("manifest.file", FILES[0], None) in problems(judge(repacked))


def test_a_file_that_only_the_manifest_lists_is_found(repacked: Path) -> None:
    extra = {"path": "model-00003-of-00003.safetensors", "size_bytes": 1, "header_bytes": 1, "root_b3": ""}
    change_manifest(repacked, lambda document: document["files"].append(extra))
    assert problems(judge(repacked)) == [("manifest.file", "model-00003-of-00003.safetensors", None)]
    assert judge(repacked / FILES[0]).findings == []


def test_tensors_that_only_one_side_knows_are_found(repacked: Path) -> None:
    def rename(document: Any) -> None:
        entry = next(entry for entry in document["tensors"] if entry["name"] == "model.odd")
        entry["name"] = "model.even"

    change_manifest(repacked, rename)
    assert {("manifest.tensor", FILES[1], "model.odd"), ("manifest.tensor", FILES[1], "model.even")} <= set(
        problems(judge(repacked))
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("dtype", "I8"), ("shape", [17, 241]), ("offset_bytes", 5), ("nbytes", 4098), ("b3", "00" * 32), ("b3", "")],
)
def test_what_the_manifest_says_of_a_tensor_is_compared(repacked: Path, key: str, value: Any) -> None:
    def change(document: Any) -> None:
        next(entry for entry in document["tensors"] if entry["name"] == "model.odd")[key] = value

    change_manifest(repacked, change)
    rule = "digest.mismatch" if key == "b3" else "manifest.tensor"
    expected: tuple[str, str, str | None] = (rule, FILES[1], "model.odd")
    if key == "offset_bytes":  # then it stands in the wrong place of the list, too
        expected = ("manifest.malformed", "coldctl.json", None)
    assert expected in problems(judge(repacked))


@pytest.mark.parametrize(("key", "by"), [("size_bytes", 4096), ("header_bytes", 1)])
@pytest.mark.parametrize("digests", [True, False])
def test_what_the_manifest_says_of_a_file_is_compared(repacked: Path, key: str, by: int, digests: bool) -> None:
    def change(document: Any) -> None:
        document["files"][0][key] += by

    change_manifest(repacked, change)
    assert problems(judge(repacked, digests=digests)) == [("manifest.file", FILES[0], None)]


def test_a_file_that_the_manifest_lists_twice_is_found(repacked: Path) -> None:
    change_manifest(repacked, lambda document: document["files"].append(document["files"][0]))
    assert ("manifest.malformed", "coldctl.json", None) in problems(judge(repacked))


@pytest.mark.parametrize("sums", ["", "0" * 31, "0" * 64, "g" * 32])
def test_block_sums_that_cannot_be_those_of_the_tensor_are_found(repacked: Path, sums: str) -> None:
    def change(document: Any) -> None:
        next(entry for entry in document["tensors"] if entry["name"] == "model.odd")["block_sums"] = sums

    change_manifest(repacked, change)
    assert problems(judge(repacked)) == [("manifest.tensor", FILES[1], "model.odd")]


def test_a_flipped_bit_does_not_hide_another_in_the_header(repacked: Path) -> None:
    path = repacked / FILES[1]
    data = bytearray(path.read_bytes())
    header_bytes = 8 + int.from_bytes(data[:8], "little")
    data[header_bytes - 1] = ord("\t")  # legal white space, and not what was written
    data[-1] ^= 1
    path.write_bytes(data)
    assert {rule for rule, _, _ in problems(judge(repacked))} >= {"digest.mismatch", "digest.root"}


@pytest.mark.parametrize("nbytes", [-1, 1 << 62])
def test_absurd_sizes_in_a_manifest_are_found_and_not_believed(repacked: Path, nbytes: int) -> None:
    change_manifest(repacked, lambda document: document["fillers"][0].update(nbytes=nbytes))
    assert problems(judge(repacked)) == [("manifest.malformed", "coldctl.json", None)]


def test_a_manifest_that_cannot_be_used_is_a_fault_and_the_rest_is_judged(repacked: Path) -> None:
    stored = read_shard(repacked / FILES[0])["model.embed.weight"]
    flip(repacked / FILES[0], stored.offset, 0)
    (repacked / "coldctl.json").write_text('{"schema": "coldctl.manifest/9"}')
    result = judge(repacked)
    assert problems(result) == [("manifest.newer", "coldctl.json", None)]
    assert (result.digests_checked, result.digests_reason) == (0, "coldctl.json cannot be used")
    assert result.tensors == 7
    (repacked / "coldctl.json").write_text("{")
    assert problems(judge(repacked)) == [("manifest.malformed", "coldctl.json", None)]
    (repacked / "coldctl.json").unlink()
    (repacked / "coldctl.json").mkdir()
    assert problems(judge(repacked)) == [("manifest.malformed", "coldctl.json", None)]


def test_a_manifest_that_cannot_be_read_leaves_the_digests_unjudged(
    repacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("coldctl.json"):
            raise OSError(5, "Input/output error")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    result = judge(repacked)
    assert result.findings == []
    assert [message.endswith("Input/output error") for message in result.unjudged] == [True]
    assert result.digests_reason == "coldctl.json cannot be read"


def test_without_a_manifest_digests_are_said_to_be_unchecked(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": made("U8", 100)})
    result = judge(tmp_path)
    assert (result.findings, result.digests_checked) == ([], 0)
    assert result.digests_reason == "there is no coldctl.json"


def test_without_digests_no_data_is_read(repacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any, **__: Any) -> int:
        raise AssertionError("data were read")

    monkeypatch.setattr(reader, "read", explode)
    result = judge(repacked, digests=False)
    assert result.errors == []
    assert result.digests_reason == "not asked for"


def test_odd_booleans_are_warned_of_with_and_without_a_manifest(tmp_path: Path) -> None:
    tensors = {"good": Made("BOOL", (2,), b"\0\1"), "odd": Made("BOOL", (3,), b"\0\2\1"), "other": made("U8", 5000)}
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target")))
    for folder in ("source", "target"):
        result = judge(tmp_path / folder)
        assert [(f.rule, f.severity, f.tensor) for f in result.findings if f.rule == "content.bool"] == [
            ("content.bool", "warning", "odd")
        ]
        assert result.errors == []


def test_alignment_is_counted_over_all_files(tmp_path: Path) -> None:
    tensors = {"a": made("F32", 1), "b": made("F32", 15), "c": made("U8", 1), "d": made("U8", 3)}
    path = tmp_path / "model.safetensors"
    raw = shard_bytes(tensors)
    pad = -len(raw[: 8 + struct.unpack("<Q", raw[:8])[0]]) % 4096
    path.write_bytes(shard_bytes(tensors, pad=pad))
    # They start at 0, 4, 64 and 65 of a page.
    assert judge(tmp_path).alignment == [
        AlignmentCount("4096", 1, 4),
        AlignmentCount("256", 1, 4),
        AlignmentCount("64", 2, 5),
        AlignmentCount("natural", 4, 68),
    ]


def test_misaligned_dtypes_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_shard(path, {"a": made("U8", 1), "b": made("F32", 2)})
    begins, _ = header_of(path)
    raw = path.read_bytes()
    path.write_bytes(shard_bytes({"a": made("U8", 1), "b": made("F32", 2)}, pad=-begins % 8))
    assert len(raw) <= path.stat().st_size
    result = judge(tmp_path)
    assert [(f.rule, f.severity, f.tensor) for f in result.findings] == [("layout.misaligned", "warning", "b")]


def test_nowhere_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        judge(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no safetensors"):
        judge(tmp_path)


def test_a_broken_file_does_not_keep_the_others_from_being_judged(repacked: Path) -> None:
    stored = read_shard(repacked / FILES[0])["model.bias"]
    flip(repacked / FILES[0], stored.offset, 3)
    (repacked / FILES[1]).write_bytes(b"\0" * 100)
    found = problems(judge(repacked))
    assert ("digest.mismatch", FILES[0], "model.bias") in found
    assert FILES[1] in {file for _, file, _ in found}


def test_a_checkpoint_without_a_sound_header_is_judged_too(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 50)
    result = judge(tmp_path)
    assert problems(result)
    assert (result.files, result.tensors, result.bytes) == (0, 0, 0)
    assert result.digests_reason == "no headers to check them against"


class Interfering(Events):
    """Does something once, when reading has begun."""

    def __init__(self, interfere: Any) -> None:
        self._interfere = interfere

    def begin(self, label: str, total_bytes: int) -> None:  # noqa: ARG002
        self._interfere()


def test_a_checkpoint_that_changes_meanwhile_is_no_verdict(repacked: Path) -> None:
    path = repacked / FILES[0]
    with pytest.raises(ChangedError):
        verify(VerifyOptions(str(repacked)), Interfering(lambda: os.truncate(path, path.stat().st_size - 1)))


def test_verifying_can_be_stopped(repacked: Path) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(2)

    with pytest.raises(StoppedError) as caught:
        verify(VerifyOptions(str(repacked)), Stopping())
    assert caught.value.exit_code == 130


def test_a_copy_is_as_good_as_what_was_written(repacked: Path, tmp_path: Path) -> None:
    shutil.copytree(repacked, tmp_path / "copy")
    assert judge(tmp_path / "copy").findings == []


def test_large_tensors_are_digested_over_many_pieces(tmp_path: Path) -> None:
    write_shard(tmp_path / "source" / "model.safetensors", {"big": made("U8", 9 * MIB + 3), "small": made("U8", 7)})
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target")))
    assert judge(tmp_path / "target").findings == []
    path = tmp_path / "target" / "model.safetensors"
    big = read_shard(path)["big"]
    for place in (0, 4 * MIB, 5 * MIB + 1, 9 * MIB + 2):
        flip(path, big.offset + place, 5)
        assert problems(judge(tmp_path / "target")) == [("digest.mismatch", "model.safetensors", "big")]
        flip(path, big.offset + place, 5)
