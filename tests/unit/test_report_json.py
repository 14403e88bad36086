"""Results and errors as one JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from coldctl.report.json import error_document, line, result_document
from coldctl.results.facts import SkippedFile
from coldctl.results.verify import Finding


@dataclass(frozen=True)
class Sample:
    path: str
    size_bytes: int | None
    findings: list[Finding]
    skipped: tuple[SkippedFile, ...]
    share: float

    @property
    def not_a_field(self) -> int:
        return 1


SAMPLE = Sample(
    path="m\udcff/\x1b\u202e模",
    size_bytes=2**63,
    findings=[Finding("header.gap", "error", "a.safetensors", None, "gap", "rewrite it")],
    skipped=(SkippedFile("x", "why"),),
    share=0.5,
)


def test_the_fields_of_the_result_follow_schema_command_and_ok() -> None:
    text = result_document("verify", SAMPLE, ok=False)
    assert json.loads(text) == {
        "schema": "coldctl.verify/1",
        "command": "verify",
        "ok": False,
        "path": "m\\xff/\x1b\u202e模",
        "size_bytes": 2**63,
        "findings": [
            {
                "rule": "header.gap",
                "severity": "error",
                "file": "a.safetensors",
                "tensor": None,
                "message": "gap",
                "hint": "rewrite it",
            }
        ],
        "skipped": [{"path": "x", "reason": "why"}],
        "share": 0.5,
    }
    assert list(json.loads(text))[:3] == ["schema", "command", "ok"]


def test_the_document_is_one_printable_ascii_line() -> None:
    text = result_document("verify", SAMPLE, ok=True)
    assert text.endswith("}\n")
    assert text[:-1].isascii()
    assert text[:-1].isprintable()


def test_an_error_has_no_other_keys() -> None:
    text = error_document("status", code="input", exit_code=4, message="no \udc80", hint=None)
    assert json.loads(text) == {
        "schema": "coldctl.status/1",
        "command": "status",
        "ok": False,
        "error": {"code": "input", "exit_code": 4, "message": r"no \x80", "hint": None},
    }


def test_an_error_without_a_command_says_so() -> None:
    document = json.loads(error_document(None, code="usage", exit_code=2, message="", hint=None))
    assert (document["schema"], document["command"]) == ("coldctl/1", None)


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        line({"share": float("nan")})
