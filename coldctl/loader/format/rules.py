"""Every rule that a checkpoint can break: an id that scripts may rely on, how bad it is, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coldctl.errors import FaultError
from coldctl.results.verify import Finding, Severity

MOST_FINDINGS = 100


class Rule(NamedTuple):
    severity: Severity
    why: str
    hint: str


_AGAIN = "fetch the file again"
_REWRITE = "write the file again with a current safetensors library"
_ANOTHER_COPY = "restore it from another copy; if the change was meant, repack"
_INDEX = "fetch the index again, or write it anew from the shards' headers"

RULES: dict[str, Rule] = {
    # one safetensors file: from its first byte to its last
    "file.missing": Rule("error", "a file that the checkpoint needs is not there", _AGAIN),
    "file.dangling-link": Rule("error", "the file is a link to nothing", "fetch the file again: the cache lost it"),
    "file.link-loop": Rule("error", "the links never end at a file", "replace the link by the file itself"),
    "file.name-too-long": Rule("error", "no filesystem holds a name of that length", _INDEX),
    "file.not-regular": Rule("error", "folders, pipes, sockets and devices hold no weights", "put the real file there"),
    "file.shrank": Rule("error", "something is writing to the file", "wait until nothing writes to it, then try again"),
    "file.suffix": Rule("warning", "loaders find weights by their suffix", "name the file *.safetensors"),
    "file.truncated": Rule("error", "tensors reach past the end of the file", f"{_AGAIN}: the transfer stopped early"),
    "file.more": Rule("error", "only the first faults of a kind are listed", "mend the listed ones first"),
    "file.more-warnings": Rule("warning", "only the first warnings are listed", "look at the listed ones first"),
    "header.too-short": Rule("error", "a safetensors file begins with 8 bytes of length", _AGAIN),
    "header.length": Rule("error", "the header must lie inside the file", f"{_AGAIN}: this is no safetensors file"),
    "header.too-large": Rule(
        "error", "readers refuse headers over 100,000,000 bytes", "split the tensors over more files, or fetch it again"
    ),
    "header.truncated": Rule("error", "the file ends inside its header", f"{_AGAIN}: the transfer stopped early"),
    "header.first-byte": Rule("error", "the format demands that the header begins with {", _REWRITE),
    "header.utf8": Rule("error", "readers of other languages see other names", _REWRITE),
    "header.json": Rule("error", "the header is one JSON object", _REWRITE),
    "header.duplicate-key": Rule("error", "parsers disagree about which of the two counts", _REWRITE),
    "header.metadata": Rule("error", "__metadata__ maps strings to strings", _REWRITE),
    "header.entry": Rule("error", "each tensor has a dtype, a shape and data_offsets", _REWRITE),
    "header.dtype": Rule("error", "the size of an element must be known", "use a dtype that safetensors defines"),
    "header.shape": Rule("error", "a shape is a list of whole numbers", _REWRITE),
    "header.overflow": Rule("error", "no machine can hold that many elements", _REWRITE),
    "header.partial-byte": Rule("error", "a tensor takes a whole number of bytes", "pad its last dimension"),
    "header.offsets": Rule(
        "error", "data_offsets are two places in the data, the first not after the second", _REWRITE
    ),
    "header.size-mismatch": Rule("error", "dtype and shape say how many bytes there must be", _REWRITE),
    "header.overlap": Rule("error", "no two tensors may share bytes", "store each tensor's bytes once"),
    "header.gap": Rule("error", "the format allows no bytes between tensors", _REWRITE),
    "header.tail": Rule("error", "the format allows no bytes after the last tensor", _REWRITE),
    "header.extra-field": Rule(
        "warning", "readers ignore it, and rewriting the file drops it", "move it to __metadata__"
    ),
    "header.padding": Rule("warning", "the format pads headers with spaces only", _REWRITE),
    "header.rank": Rule("warning", "frameworks hold at most 64 dimensions", "reshape the tensor"),
    "header.name": Rule("warning", "many tools cannot handle the name", "rename the tensor"),
    "layout.sparse": Rule(
        "warning", "the data has holes, which read as zeros", "compare with the original: a copy may have stopped early"
    ),
    # the index of a sharded checkpoint
    "index.too-large": Rule("error", "an index over 100,000,000 bytes is none", _INDEX),
    "index.utf8": Rule("error", "JSON is UTF-8", _INDEX),
    "index.json": Rule("error", "the index is one JSON object", _INDEX),
    "index.duplicate-key": Rule("error", "parsers disagree about which of the two counts", _INDEX),
    "index.weight-map": Rule("error", "weight_map says which shard holds which tensor", _INDEX),
    "index.metadata": Rule("error", "loaders look into the index's metadata as an object", _INDEX),
    "index.reserved-name": Rule("error", "__metadata__ is not a tensor", _INDEX),
    "index.shard-name": Rule(
        "error", "a shard is a file in the checkpoint's folder, and loaders open the name as it stands", _INDEX
    ),
    "index.not-safetensors": Rule("error", "a safetensors index names safetensors files only", _INDEX),
    "index.subfolder": Rule("warning", "many loaders look in the checkpoint's own folder only", "move the shard up"),
    "index.missing-shard": Rule(
        "error", "tensors are missing, and some loaders do not notice", "fetch the missing shards"
    ),
    "index.stale": Rule(
        "error",
        "the index describes another split than the files beside it",
        "delete the index if the files are the whole checkpoint, or fetch the shards that it names",
    ),
    "index.missing-tensor": Rule("error", "a loader that trusts the index fails on it", _INDEX),
    "index.unindexed-tensor": Rule("error", "loaders disagree whether such a tensor is loaded", _INDEX),
    "index.wrong-shard": Rule("error", "a loader that trusts the index fails on it", _INDEX),
    "index.total-size": Rule("warning", "tools size memory and disks by it", "set total_size to the tensors' bytes"),
    # the folder around the files
    "folder.missing-shard": Rule(
        "error", "the names say how many shards there are", "fetch the missing shards: the names say which"
    ),
    "folder.shard-number": Rule("error", "the names contradict each other", "remove the shard of another split"),
    "folder.ambiguous": Rule("error", "loaders would pick different files", "name the file, or keep one set only"),
    "folder.duplicate-tensor": Rule("error", "loaders disagree which of the two counts", "keep each tensor once"),
    "folder.no-index": Rule("warning", "nothing says that these files belong together", "name the file that you mean"),
    "folder.ignored": Rule(
        "warning",
        "the file is not part of the checkpoint, but some loaders take every file in the folder",
        "move the file away unless a loader needs it",
    ),
    "folder.incomplete": Rule("warning", "a download was not finished", "finish it, or delete the leftover"),
    # how the tensors lie
    "layout.misaligned": Rule(
        "warning",
        "GPU libraries and mapped views need tensors aligned for their dtype, and copy them where they are not",
        "coldctl repack lays them out anew",
    ),
    "layout.fragmented": Rule(
        "warning", "cold reads jump around on the device", "coldctl repack where more free space lies in one piece"
    ),
    # the bytes against coldctl.json
    "manifest.malformed": Rule("error", "digests that cannot be read prove nothing", "repack again, or remove it"),
    "manifest.newer": Rule("error", "its digests may mean something else", "use a newer coldctl"),
    "manifest.file": Rule("error", "the files are not those that were written", _ANOTHER_COPY),
    "manifest.tensor": Rule("error", "the tensors are not those that were written", _ANOTHER_COPY),
    "digest.mismatch": Rule("error", "the bytes are not those that were written", _ANOTHER_COPY),
    "digest.root": Rule("error", "the header or the manifest is not what was written", _ANOTHER_COPY),
    # what the bytes hold
    "content.bool": Rule("warning", "frameworks disagree about booleans other than 0 and 1", "write them as 0 and 1"),
}


def finding(
    rule: str, message: str, *, file: str | None = None, tensor: str | None = None, hint: str | None = None
) -> Finding:
    """A Finding for `rule`, with the rule's severity, and its hint where `hint` has nothing closer to say."""
    found = RULES[rule]
    return Finding(rule, found.severity, file, tensor, message, hint or found.hint)


def fault(found: Finding, others: int = 0) -> FaultError:
    """The FaultError that says what `found` says, and that there are `others` besides."""
    more = f" (and {others} more {'fault' if others == 1 else 'faults'}: run coldctl verify)" if others else ""
    place = f"{found.file}: " if found.file is not None and found.file not in found.message else ""
    return FaultError(
        place + found.message + more, rule=found.rule, file=found.file, tensor=found.tensor, hint=found.hint
    )


class Findings:
    """The findings of one file, in order. Beyond MOST_FINDINGS of a severity they are counted, not kept."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self._kept: list[Finding] = []
        self._counts: dict[Severity, int] = {"error": 0, "warning": 0}

    def add(self, rule: str, message: str, *, tensor: str | None = None, hint: str | None = None) -> None:
        severity = RULES[rule].severity
        self._counts[severity] += 1
        if self._counts[severity] <= MOST_FINDINGS:
            self._kept.append(finding(rule, message, file=self.file, tensor=tensor, hint=hint))

    @property
    def errors(self) -> int:
        return self._counts["error"]

    def listed(self) -> list[Finding]:
        """What was kept, and a last line for each severity of which more was found."""
        listed = list(self._kept)
        for severity, rule, noun in (("error", "file.more", "faults"), ("warning", "file.more-warnings", "warnings")):
            more = self._counts[severity] - MOST_FINDINGS  # type: ignore[index]
            if more > 0:
                listed.append(finding(rule, f"{more:,} more {noun} are not listed", file=self.file))
        return listed


def capped(findings: Iterable[Finding]) -> list[Finding]:
    """`findings` as `Findings` keeps them, file by file in the order in which each first appears."""
    by_file: dict[str | None, Findings] = {}
    for found in findings:
        kept = by_file.setdefault(found.file, Findings(found.file))
        kept.add(found.rule, found.message, tensor=found.tensor, hint=found.hint)
    return [found for kept in by_file.values() for found in kept.listed()]
