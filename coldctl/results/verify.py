"""What `verify` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coldctl.results.facts import AlignmentCount

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: where, what, and what to do. `file` is relative to the checkpoint's folder."""

    rule: str
    severity: Severity
    file: str | None
    tensor: str | None
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    path: str
    size_bytes: int
    extents: int | None
    ideal_extents: int | None
    contiguous: bool | None
    extents_reason: str | None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`files`, `tensors` and `bytes` count what was looked at; `tensor_bytes` the data in it, without the headers;
    `digests_checked` the tensors whose bytes were hashed, of `digests_listed` in the manifest (null without one).
    Fillers are checked too, but count as bytes of files only.

    `unjudged` names what could not be read, so that an unreadable file is never called clean.
    """

    path: str
    findings: list[Finding]
    unjudged: list[str]
    files: int
    tensors: int
    bytes: int
    tensor_bytes: int
    digests_checked: int
    digests_listed: int | None
    digests_reason: str | None
    alignment: list[AlignmentCount]
    layout: list[VerifiedFile]
    seconds: float

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]
