"""A checkpoint as a whole: its files located, their headers read, and the index held against them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from coldctl.errors import ColdctlError
from coldctl.loader.format.crosscheck import crosscheck
from coldctl.loader.format.header import Header, Tensor, inspect_file
from coldctl.loader.format.locate import Located, locate
from coldctl.loader.format.rules import capped, fault, finding
from coldctl.loader.source import LocalFile
from coldctl.results.verify import Finding


@dataclass(frozen=True)
class Shard:
    """A file whose header is sound. `name` is relative to the root, as in the index; `identity` is (device, inode,
    size, mtime_ns) of the file whose header was read, to tell later whether it is still the same."""

    name: str
    path: str
    size_bytes: int
    identity: tuple[int, int, int, int]
    header: Header

    @cached_property
    def source(self) -> LocalFile:
        """Where its bytes come from: one object a shard, so that plans can compare sources by identity."""
        return LocalFile(self.name, self.path, self.identity)


@dataclass(frozen=True)
class Checkpoint:
    """Shards in natural order. `ignored` lists the weight-like files beside them, which are never read. `single_file`
    says that the path named one file, and not the folder around it."""

    root: str
    index_name: str | None
    index_metadata: Mapping[str, object] | None
    shards: tuple[Shard, ...]
    ignored: tuple[str, ...]
    single_file: bool

    @property
    def bytes(self) -> int:
        """The sizes of all files, headers included."""
        return sum(shard.size_bytes for shard in self.shards)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, shard by shard, in file order."""
        return (tensor for shard in self.shards for tensor in shard.header.tensors)

    def from_anywhere(self) -> Checkpoint:
        """The same files, whatever folder the process works in later. Links stay links, and names as they are."""
        here = os.getcwd() if not os.path.isabs(self.root) else ""
        shards = tuple(replace(shard, path=os.path.join(here, shard.path)) for shard in self.shards)
        return replace(self, root=os.path.join(here, self.root), shards=shards)


@dataclass(frozen=True)
class Examination:
    """All that one look found. `checkpoint` holds the shards whose headers are sound, and is None when none is: only
    without errors in `findings`, and nothing `unreadable`, is it the whole checkpoint. `members` names all of its files
    that are there, sound or not."""

    checkpoint: Checkpoint | None
    members: tuple[str, ...]
    findings: list[Finding]
    unreadable: list[str]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`, without a fault. No tensor's bytes are read.

    Raises FaultError for the first fault, with the number of others; InputError when there is no checkpoint at `path`;
    EnvironmentLacksError or UnreadableError when something of it cannot be read.
    """
    return open_located(locate(os.fspath(path)))


def open_located(located: Located) -> Checkpoint:
    """`open_checkpoint` of what `locate` has found before."""
    look = _Look(located)
    errors = [found for found in look.findings if found.severity == "error"]
    if errors:
        raise fault(errors[0], len(errors) - 1)
    if look.unreadable:
        raise look.unreadable[0]
    return look.checkpoint()


def examine(path: str | os.PathLike[str]) -> Examination:
    """Every independent fault of the checkpoint at `path`, in one run and in a fixed order.

    Raises InputError when there is no checkpoint at `path`, EnvironmentLacksError or UnreadableError when the folder or
    index cannot be read.
    """
    look = _Look(locate(os.fspath(path)))
    checkpoint = look.checkpoint()
    messages = [error.message for error in look.unreadable]
    members = tuple(member.name for member in look.located.members)
    return Examination(checkpoint if checkpoint.shards else None, members, look.findings, messages)


class _Look:
    """One look at a checkpoint: what is sound, what is faulty, and what could not be read."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self.shards: list[Shard] = []
        self.findings = _located_findings(self.located)
        self.unreadable: list[ColdctlError] = list(self.located.unreadable)
        for member in self.located.members:
            self._inspect(member.name, member.path)
        self.findings += self._crosscheck()

    def _inspect(self, name: str, path: str) -> None:
        try:
            looked = inspect_file(path, name)
        except ColdctlError as error:
            self.unreadable.append(error)
            return
        self.findings += looked.findings
        if looked.header is not None and looked.identity is not None:
            self.shards.append(Shard(name, path, looked.size_bytes, looked.identity, looked.header))

    def _crosscheck(self) -> list[Finding]:
        located = self.located
        headers = {shard.name: shard.header for shard in self.shards}
        faultless = not self.unreadable and all(found.severity != "error" for found in self.findings)
        return crosscheck(headers, located.weight_map, located.index_metadata, located.index_name, whole=faultless)

    def checkpoint(self) -> Checkpoint:
        located = self.located
        return Checkpoint(
            located.root,
            located.index_name,
            located.index_metadata,
            tuple(self.shards),
            tuple(located.ignored),
            located.single_file,
        )


def _located_findings(located: Located) -> list[Finding]:
    """The faults of index and folder, capped for each file that they are about."""
    return capped(finding(each.rule, each.message, file=each.file, tensor=each.tensor) for each in located.faults)
