"""A checkpoint against its manifest: files, tensors, digests and roots, each difference by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from blake3 import blake3

from coldctl.jobs.verify.content import Content
from coldctl.loader.format import manifest
from coldctl.loader.format.checkpoint import Checkpoint, Shard
from coldctl.loader.format.layout import PAGE_BYTES
from coldctl.loader.format.manifest import File, Manifest
from coldctl.loader.format.rules import finding
from coldctl.loader.plan import source_of
from coldctl.results import Finding


def compare(checkpoint: Checkpoint, members: Collection[str], listed: Manifest, content: Content) -> list[Finding]:
    """Every difference between the files as they are and as the manifest says they were written.

    `members` names all files of the checkpoint, those too that `checkpoint` leaves out as faulty. Of a single file of a
    larger checkpoint only that file is compared. Tensors in `content.unreadable` are left out, and so is the root of
    their file: nothing can be said of them. Raises ChangedError when a header changes meanwhile.
    """
    files = {file.path: file for file in listed.files}
    shards = {shard.name: shard for shard in checkpoint.shards}
    findings = [
        finding("manifest.file", f"{name} is not listed in {manifest.NAME}", file=name)
        for name in members
        if name not in files
    ]
    if not checkpoint.single_file:
        findings += [
            finding("manifest.file", f"{manifest.NAME} lists {name}, which is not part of the checkpoint", file=name)
            for name in files
            if name not in members
        ]
    for name, shard in shards.items():
        if name in files:
            findings += _compare_file(shard, files[name], listed, content)
    return findings


def _compare_file(shard: Shard, file: File, listed: Manifest, content: Content) -> Iterator[Finding]:
    yield from _compare_header(shard, listed)
    mismatches = list(_compare_digests(shard, listed, content))
    yield from mismatches
    tensors_unread = any(name == shard.name for name, _ in content.unreadable)
    if not mismatches and not tensors_unread and _root(shard, content) != file.root_b3:
        message = f"the header's bytes are not those that were written ({file.header_bytes} bytes from 0 on)"
        yield finding("digest.root", message, file=shard.name)


def _compare_header(shard: Shard, listed: Manifest) -> Iterator[Finding]:
    """Tensors and fillers as the header has them, against the manifest: name, dtype, shape, place and size."""
    said = {t.name: (t.dtype, t.shape, t.offset_bytes, t.nbytes) for t in listed.tensors if t.file == shard.name}
    fillers = {f.name: ("U8", (f.nbytes,), f.offset_bytes, f.nbytes) for f in listed.fillers if f.file == shard.name}
    said |= fillers
    found = {t.name: (t.dtype, t.shape, t.offset_bytes, t.nbytes) for t in shard.header.tensors}
    for name in sorted(said.keys() | found.keys()):
        if name not in found:
            yield _tensor(shard, name, f"{manifest.NAME} lists a tensor that is not in the file")
        elif name not in said:
            yield _tensor(shard, name, f"the file holds a tensor that {manifest.NAME} does not list")
        elif said[name] != found[name]:
            yield _tensor(shard, name, f"the header says {_words(found[name])}, {manifest.NAME} {_words(said[name])}")


def _compare_digests(shard: Shard, listed: Manifest, content: Content) -> Iterator[Finding]:
    said = {t.name: t.b3 for t in listed.tensors if t.file == shard.name}
    said |= {f.name: _zeros_b3(f.nbytes) for f in listed.fillers if f.file == shard.name and 0 <= f.nbytes < PAGE_BYTES}
    for tensor in shard.header.tensors:
        digest = content.digests.get((shard.name, tensor.name))
        if digest and tensor.name in said and digest.b3.hex() != said[tensor.name]:
            end_bytes = tensor.offset_bytes + tensor.nbytes
            message = f"bytes {tensor.offset_bytes} to {end_bytes} differ from what was written"
            yield finding("digest.mismatch", message, file=shard.name, tensor=tensor.name)


@cache
def _zeros_b3(nbytes: int) -> str:
    return blake3(bytes(nbytes)).hexdigest()


def _root(shard: Shard, content: Content) -> str:
    with source_of(shard).open() as opened:
        raw = bytearray(shard.header.header_bytes)
        opened.read_into(memoryview(raw), 0)
    return manifest.root_b3(raw, [content.digests[shard.name, t.name].b3 for t in shard.header.tensors])


def _tensor(shard: Shard, name: str, message: str) -> Finding:
    return finding("manifest.tensor", message, file=shard.name, tensor=name)


def _words(entry: tuple[str, tuple[int, ...], int, int]) -> str:
    dtype, shape, offset_bytes, nbytes = entry
    return f"{dtype} {list(shape)}, {nbytes} bytes at byte {offset_bytes}"
