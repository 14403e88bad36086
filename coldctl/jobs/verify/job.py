"""verify: the verdict on a checkpoint, with every independent fault in one run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coldctl.errors import ColdctlError, FaultError
from coldctl.events import NULL, Events
from coldctl.jobs.verify.against_manifest import compare
from coldctl.jobs.verify.content import Content, read_content
from coldctl.loader.format import manifest
from coldctl.loader.format.checkpoint import Checkpoint, Shard, examine
from coldctl.loader.format.dtypes import natural_alignment_bytes
from coldctl.loader.format.extents import extents
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import count_alignment, is_filler
from coldctl.loader.format.manifest import Manifest
from coldctl.loader.format.rules import finding
from coldctl.results.facts import Extents
from coldctl.results.verify import Finding, VerifiedFile, VerifyResult


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`digests=False` looks at headers, index, folder and manifest only, and reads no data."""

    path: str
    digests: bool = True


def verify(options: VerifyOptions, events: Events = NULL) -> VerifyResult:
    """Judge the checkpoint at `options.path`. What is wrong with it is in `findings`, never raised.

    Raises InputError when there is no checkpoint at all, ChangedError when it changes meanwhile, StoppedError. A clean
    result without a manifest promises nothing about the values of the tensors (`digests_reason` says so).
    """
    start_seconds = time.perf_counter()
    examination = examine(options.path)
    findings, unjudged = list(examination.findings), list(examination.unreadable)
    checkpoint = examination.checkpoint
    content = Content({}, set(), {})
    listed = None
    digests_reason: str | None = "no headers to check them against"
    layout: list[VerifiedFile] = []
    if checkpoint:
        listed, digests_reason = _manifest(checkpoint, findings, unjudged)
        if listed and not options.digests:
            digests_reason = "not asked for"
        if options.digests:
            content = read_content(checkpoint, events, digests=listed is not None)
        findings += compare(checkpoint, examination.members, listed, content) if listed else []
        findings += [_bool(file, tensor) for file, tensor in sorted(content.odd_bools)]
        unjudged += [f"{file}, tensor {tensor}: {error}" for (file, tensor), error in content.unreadable.items()]
        layout = [_layout(shard) for shard in checkpoint.shards]
        findings += [found for shard in checkpoint.shards for found in _misaligned(shard)]
        findings += [_fragmented(file) for file in layout if file.contiguous is False]
    tensors = _tensors(checkpoint) if checkpoint else {}
    return VerifyResult(
        path=options.path,
        findings=findings,
        unjudged=unjudged,
        files=len(checkpoint.shards) if checkpoint else 0,
        tensors=len(tensors),
        bytes=checkpoint.bytes if checkpoint else 0,
        tensor_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        digests_checked=len(content.digests.keys() & tensors.keys()),
        digests_listed=_digests_listed(listed, checkpoint),
        digests_reason=digests_reason,
        alignment=count_alignment(tensors.values()) if checkpoint else [],
        layout=layout,
        seconds=time.perf_counter() - start_seconds,
    )


def _manifest(
    checkpoint: Checkpoint, findings: list[Finding], unjudged: list[str]
) -> tuple[Manifest | None, str | None]:
    """The manifest to compare with, or None with the reason."""
    try:
        listed = manifest.load(checkpoint.root)
    except FaultError as error:
        findings.append(finding(error.rule, error.message, file=manifest.NAME))
        return None, f"{manifest.NAME} cannot be used"
    except ColdctlError as error:
        unjudged.append(error.message)
        return None, f"{manifest.NAME} cannot be read"
    return listed, None if listed else f"there is no {manifest.NAME}"


def _digests_listed(listed: Manifest | None, checkpoint: Checkpoint | None) -> int | None:
    """How many digests there are to check: of a single file, its own."""
    if listed is None or checkpoint is None:
        return None
    names = {shard.name for shard in checkpoint.shards}
    return sum(not checkpoint.single_file or tensor.file in names for tensor in listed.tensors)


def _tensors(checkpoint: Checkpoint) -> dict[tuple[str, str], Tensor]:
    """By file and name, and without fillers: they are checked as well, but they are nobody's weights."""
    return {
        (shard.name, tensor.name): tensor
        for shard in checkpoint.shards
        for tensor in shard.header.tensors
        if not is_filler(tensor)
    }


def _misaligned(shard: Shard) -> list[Finding]:
    names = [t.name for t in shard.header.tensors if t.nbytes and t.offset_bytes % natural_alignment_bytes(t.dtype)]
    if not names:
        return []
    message = f"{len(names)} of {len(shard.header.tensors)} tensors do not start on a multiple of their dtype's size"
    return [finding("layout.misaligned", message, file=shard.name, tensor=names[0])]


def _fragmented(file: VerifiedFile) -> Finding:
    message = f"the file lies in {file.extents} extents, where the filesystem can do {file.ideal_extents}"
    return finding("layout.fragmented", message, file=file.path)


def _bool(file: str, tensor: str) -> Finding:
    return finding("content.bool", "a BOOL tensor holds bytes other than 0 and 1", file=file, tensor=tensor)


def _layout(shard: Shard) -> VerifiedFile:
    try:
        found = extents(shard.path)
    except OSError as error:
        found = Extents(None, None, None, None, f"the file cannot be looked at: {error.strerror}")
    return VerifiedFile(
        shard.name, shard.size_bytes, found.extents, found.ideal_extents, found.contiguous, found.reason
    )
