"""coldctl.json: its exact text, and that one from anywhere else is refused for the right reason."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from coldctl.errors import FaultError, UnreadableError
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.format import manifest, rules
from tests.tiny import Made, header_of, read_shard, write_shard

EMPTY = {
    "schema": "coldctl.manifest/1",
    "layout": {"align": "page", "order": "name", "shards": "kept", "tied": "keep"},
    "files": [],
    "tensors": [],
    "fillers": [],
    "tied": [],
}


def test_the_text_of_a_small_manifest(tmp_path: Path) -> None:
    """Three tensors, of which `every` puts two on a page by a filler; all but the header is worked out by hand."""
    page = struct.pack("<512Q", *range(512))
    odd = struct.pack("<2Q", 40, 2)
    short = b"\x07"
    tensors = {"short": Made("U8", (1,), short), "page": Made("I64", (512,), page), "odd": Made("F32", (2, 2), odd)}
    write_shard(tmp_path / "source" / "model.safetensors", tensors)
    repack(RepackOptions(str(tmp_path / "source"), str(tmp_path / "target"), align="every"))
    target = tmp_path / "target"

    header = (target / "model.safetensors").read_bytes()[: header_of(target / "model.safetensors")[0]]
    assert len(header) == 4096
    filler = "_coldctl_pad.00001.000001.self_attn.rotary_emb.inv_freq"
    b3 = {name: blake3(data).hexdigest() for name, data in (("page", page), ("odd", odd), ("short", short))}
    root = blake3(b"coldctl.root/1\0" + header)
    for data in (page, odd, bytes(4080), short):
        root.update(blake3(data).digest())
    # The words of `page` are w_i = i: their sum is 511 * 512 / 2, and that of (i + 1) i is 511 * 512 * 513 / 3.
    page_sums = f"{511 * 512 // 2:016x}{511 * 512 * 513 // 3:016x}"
    expected = (
        '{"schema":"coldctl.manifest/1",'
        '"layout":{"align":"every","order":"name","shards":"kept","tied":"keep"},'
        f'"files":[{{"path":"model.safetensors","size_bytes":12289,"header_bytes":4096,"root_b3":"{root.hexdigest()}"}}],'
        '"tensors":['
        '{"name":"page","dtype":"I64","shape":[512],"file":"model.safetensors","offset_bytes":4096,"nbytes":4096,'
        f'"b3":"{b3["page"]}","block_sums":"{page_sums}"}},'
        '{"name":"odd","dtype":"F32","shape":[2,2],"file":"model.safetensors","offset_bytes":8192,"nbytes":16,'
        f'"b3":"{b3["odd"]}","block_sums":"{42:016x}{44:016x}"}},'
        '{"name":"short","dtype":"U8","shape":[1],"file":"model.safetensors","offset_bytes":12288,"nbytes":1,'
        f'"b3":"{b3["short"]}","block_sums":"{7:016x}{7:016x}"}}],'
        f'"fillers":[{{"name":"{filler}","file":"model.safetensors","offset_bytes":8208,"nbytes":4080}}],'
        '"tied":[]}\n'
    )
    assert (target / "coldctl.json").read_text() == expected
    assert read_shard(target / "model.safetensors")[filler].data == bytes(4080)


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    made = manifest.Manifest(
        manifest.SCHEMA,
        manifest.Layout("page", "layers", 5_000_000_000, "keep"),
        [manifest.File("ü.safetensors", 1 << 50, 4096, "00" * 32)],
        [manifest.Tensor('a"\n\x1b', "F4", (2, 0), "ü.safetensors", 4096, 0, "11" * 32, "")],
        [manifest.Filler("f", "ü.safetensors", 1, 2)],
        [manifest.Tied("a", ["b"])],
    )
    (tmp_path / "coldctl.json").write_bytes(manifest.encode(made))
    assert manifest.load(str(tmp_path)) == made


def test_no_manifest_is_no_error(tmp_path: Path) -> None:
    assert manifest.load(str(tmp_path)) is None


def load(folder: Path, document: Any) -> FaultError:
    """The error of loading `document`: JSON, or raw bytes."""
    raw = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode() + b"\n"
    (folder / "coldctl.json").write_bytes(raw)
    with pytest.raises(FaultError) as caught:
        manifest.load(str(folder))
    assert caught.value.file == "coldctl.json"
    assert caught.value.hint == rules.RULES[caught.value.rule].hint
    return caught.value


def test_a_newer_schema_is_refused_as_such_whatever_else_changed(tmp_path: Path) -> None:
    error = load(tmp_path, {"schema": "coldctl.manifest/2", "tensors": "moved elsewhere"})
    assert error.rule == "manifest.newer"
    assert "coldctl.manifest/2" in error.message
    assert "coldctl.manifest/1" in error.message


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"schema":"coldctl.manifest/1","layout":"\xff"}',
        b"[" * 200_000,
        b'{"schema":' + b"[" * 200_000,
        {},
        {"schema": 1},
        {"schema": "somebody.else/1"},
        {"schema": "coldctl.manifest/1"},
        EMPTY | {"files": {}},
        EMPTY | {"files": [{"path": "a"}]},
        EMPTY | {"layout": {"align": 4096, "order": "name", "shards": "kept", "tied": "keep"}},
        EMPTY | {"tensors": [{"name": 1}]},
        EMPTY | {"fillers": [{"name": "f", "file": "a", "offset_bytes": 1.5, "nbytes": 1}]},
        EMPTY | {"fillers": [{"name": "f", "file": "a", "offset_bytes": None, "nbytes": 1}]},
        EMPTY | {"files": [{"path": "a", "size_bytes": True, "header_bytes": 1, "root_b3": ""}]},
        json.dumps(EMPTY).replace('"tied": []', '"tied": [' + "9" * 10_000 + "]").encode(),
        json.dumps(EMPTY | {"fillers": [{"name": "f", "file": "a", "offset_bytes": 0, "nbytes": 7}]})
        .replace("7", "1e999")
        .encode(),
        json.dumps(EMPTY | {"fillers": [{"name": "f", "file": "a", "offset_bytes": 0, "nbytes": 7}]})
        .replace("7", "1" * 5000)
        .encode(),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused_as_such(tmp_path: Path, document: Any) -> None:
    assert load(tmp_path, document).rule == "manifest.malformed"


def test_special_files_are_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "coldctl.json"
    path.mkdir()
    with pytest.raises(FaultError, match=r"coldctl\.json is a folder"):
        manifest.load(str(tmp_path))
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(FaultError, match="a named pipe"):
        manifest.load(str(tmp_path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(FaultError, match="a character device"):
        manifest.load(str(tmp_path))


def test_one_that_is_absurdly_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "coldctl.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FaultError, match="is over") as caught:
        manifest.load(str(tmp_path))
    assert caught.value.rule == "manifest.malformed"


def test_one_on_bad_blocks_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "coldctl.json").write_bytes(b"{}")

    def pread(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(UnreadableError, match=r"cannot read .*coldctl\.json: Input/output error"):
        manifest.load(str(tmp_path))


def test_the_root_is_the_hash_that_design_defines() -> None:
    digests = [blake3(b"one").digest(), blake3(b"two").digest()]
    expected = blake3(b"coldctl.root/1\x00" + b"header" + digests[0] + digests[1]).hexdigest()
    assert manifest.root_b3(b"header", digests) == expected
    assert manifest.root_b3(b"header", digests[::-1]) != expected
    assert manifest.root_b3(bytearray(b"header"), iter(digests)) == expected


@pytest.mark.parametrize(
    "change",
    [
        (b'"schema"', b'"schema":"coldctl.manifest/1","schema"'),
        (b'"tied":[]', b'"tied":[],"tied":[]'),
        (b'"tied":[]', b'"tied":[],"more":1'),
        (b'"files":[]', b'"files": []'),
    ],
)
def test_a_manifest_that_is_not_as_written_is_refused(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    raw = json.dumps(EMPTY, separators=(",", ":")).encode() + b"\n"
    assert change[0] in raw
    (tmp_path / "coldctl.json").write_bytes(raw.replace(*change))
    with pytest.raises(FaultError, match="keys repeated, unknown or moved"):
        manifest.load(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entries: entries.reverse(), "file and place"),
        (lambda entries: entries.insert(0, dict(entries[0], b3="00" * 32)), "file and place"),
        (lambda entries: entries.append(dict(entries[1], offset_bytes=entries[1]["offset_bytes"] + 1)), "name twice"),
    ],
)
def test_lists_that_two_readers_would_read_differently_are_refused(
    tmp_path: Path, change: Callable[[list[dict[str, object]]], None], says: str
) -> None:
    entry = {"dtype": "U8", "shape": [4], "file": "a", "nbytes": 4, "b3": "", "block_sums": ""}
    entries: list[dict[str, object]] = [{"name": n, **entry, "offset_bytes": 64 + 4 * i} for i, n in enumerate("xy")]
    change(entries)
    raw = json.dumps(EMPTY | {"tensors": entries}, separators=(",", ":")).encode() + b"\n"
    (tmp_path / "coldctl.json").write_bytes(raw)
    with pytest.raises(FaultError, match=says):
        manifest.load(str(tmp_path))
