"""A checkpoint against its manifest: files, tensors, digests and roots, each difference by name."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from blake3 import blake3

from coldctl.jobs.verify.content import Content
from coldctl.loader.format import manifest
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import PAGE_BYTES
from coldctl.loader.format.manifest import File, Manifest
from coldctl.loader.format.rules import capped, finding
from coldctl.loader.sink import has_sums
from coldctl.results.verify import Finding


def compare(checkpoint: Checkpoint, members: Collection[str], listed: Manifest, content: Content) -> list[Finding]:
    """Every difference between the files as they are and as the manifest says they were written.

    `members` names all files of the checkpoint, those too that `checkpoint` leaves out as faulty. Of a single file of a
    larger checkpoint only that file is compared. Tensors without a digest in `content` are compared by dtype, shape and
    place only. Raises ChangedError when a header changes meanwhile.
    """
    files = {file.path: file for file in listed.files}
    written = _written(listed)
    differences = [
        _compare_lists(members, files, listed, single_file=checkpoint.single_file),
        *(
            _compare_file(shard, files[shard.name], written.get(shard.name, {}), content)
            for shard in checkpoint.shards
            if shard.name in files
        ),
    ]
    return capped(itertools.chain.from_iterable(differences))


class _Written(NamedTuple):
    """A tensor or filler as the manifest has it."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    nbytes: int
    b3: str
    block_sums: str | None


def _written(listed: Manifest) -> dict[str, dict[str, _Written]]:
    """By file and name. A filler is at most a page of zeros; a larger one is taken for a tensor that is not listed."""
    by_file: dict[str, dict[str, _Written]] = {}
    for t in listed.tensors:
        entry = _Written(t.dtype, t.shape, t.offset_bytes, t.nbytes, t.b3, t.block_sums)
        by_file.setdefault(t.file, {})[t.name] = entry
    for f in listed.fillers:
        if 0 < f.nbytes < PAGE_BYTES:
            entry = _Written("U8", (f.nbytes,), f.offset_bytes, f.nbytes, _zeros_b3(f.nbytes), None)
            by_file.setdefault(f.file, {})[f.name] = entry
    return by_file


def _compare_lists(
    members: Collection[str], files: Mapping[str, File], listed: Manifest, *, single_file: bool
) -> Iterator[Finding]:
    if len(files) < len(listed.files):
        yield finding("manifest.malformed", f"{manifest.NAME} lists a file twice", file=manifest.NAME)
    strays = ({tensor.file for tensor in listed.tensors} | {filler.file for filler in listed.fillers}) - files.keys()
    if strays:
        message = f"{manifest.NAME} lists tensors of {min(strays)}, which is not among its files"
        yield finding("manifest.malformed", message, file=manifest.NAME)
    for name in members:
        if name not in files:
            yield finding("manifest.file", f"{name} is not listed in {manifest.NAME}", file=name)
    for name in files if not single_file else ():
        if name not in members:
            message = f"{manifest.NAME} lists {name}, which is not part of the checkpoint"
            hint = f"fetch {name} again; if it was taken away on purpose, repack"
            yield finding("manifest.file", message, file=name, hint=hint)


def _compare_file(shard: Shard, file: File, written: Mapping[str, _Written], content: Content) -> Iterator[Finding]:
    for what, said, found in (
        ("size", file.size_bytes, shard.size_bytes),
        ("header", file.header_bytes, shard.header.header_bytes),
    ):
        if said != found:
            message = f"the {what} is {found} bytes, {manifest.NAME} says {said}"
            yield finding("manifest.file", message, file=shard.name)
    yield from _compare_header(shard, written)
    yield from _compare_digests(shard, written, content)
    if _root(shard, written) != file.root_b3:
        message = (
            f"the header's {shard.header.header_bytes} bytes and the digests in {manifest.NAME} "
            "do not make the root that was written"
        )
        yield finding("digest.root", message, file=shard.name)


def _compare_header(shard: Shard, written: Mapping[str, _Written]) -> Iterator[Finding]:
    """Name, dtype, shape, place and size of each tensor and filler."""
    found = {t.name: t for t in shard.header.tensors}
    for name in sorted(written.keys() | found.keys()):
        if name not in found:
            yield _tensor(shard, name, f"{manifest.NAME} lists a tensor that is not in the file")
        elif name not in written:
            yield _tensor(shard, name, f"the file holds a tensor that {manifest.NAME} does not list")
        elif _words(found[name]) != _words(written[name]):
            message = f"the header says {_words(found[name])}, {manifest.NAME} {_words(written[name])}"
            yield _tensor(shard, name, message)
        elif not _has_sums_for_each_block(written[name]):
            yield _tensor(shard, name, f"{manifest.NAME} has not 32 hex digits of block sums for each 4 MiB of it")


def _has_sums_for_each_block(written: _Written) -> bool:
    return written.block_sums is None or has_sums(written.block_sums, written.nbytes)


def _compare_digests(shard: Shard, written: Mapping[str, _Written], content: Content) -> Iterator[Finding]:
    for tensor in shard.header.tensors:
        digest = content.digests.get((shard.name, tensor.name))
        if digest and tensor.name in written and digest.b3.hex() != written[tensor.name].b3:
            end_bytes = tensor.offset_bytes + tensor.nbytes
            message = f"bytes {tensor.offset_bytes} to {end_bytes} differ from what was written"
            yield finding("digest.mismatch", message, file=shard.name, tensor=tensor.name)


@cache
def _zeros_b3(nbytes: int) -> str:
    return blake3(bytes(nbytes)).hexdigest()


def _root(shard: Shard, written: Mapping[str, _Written]) -> str | None:
    """The root of the header as it is and the tensors as they were written, so that each fault is found by itself. None
    when the manifest's own digests make no root."""
    with shard.source.open() as opened:
        raw = bytearray(shard.header.header_bytes)
        opened.read_into(memoryview(raw), 0)
    in_file_order = sorted(written.items(), key=lambda item: (item[1].offset_bytes, item[1].nbytes, item[0]))
    try:
        return manifest.root_b3(raw, [bytes.fromhex(entry.b3) for _, entry in in_file_order])
    except ValueError:
        return None


def _tensor(shard: Shard, name: str, message: str) -> Finding:
    return finding("manifest.tensor", message, file=shard.name, tensor=name)


def _words(entry: Tensor | _Written) -> str:
    return f"{entry.dtype} {list(entry.shape)}, {entry.nbytes} bytes at byte {entry.offset_bytes}"
