"""Results and errors as one JSON document: `schema`, `command`, `ok`, then the fields of the result.

The text is ASCII, one line with a newline at its end, so that it survives every locale and every log collector.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from coldctl.report.escape import undecoded_as_text


def result_document(command: str, result: Any, *, ok: bool) -> str:
    """The document of a result; `ok` says whether the command exits with 0."""
    return _document(command, ok, _fields(result))


def error_document(command: str | None, *, code: str, exit_code: int, message: str, hint: str | None) -> str:
    """The document of an error; `command` is null when the command line named none that exists."""
    error = {"code": code, "exit_code": exit_code, "message": message, "hint": hint}
    return _document(command, False, {"error": _clean(error)})


def line(record: dict[str, Any]) -> str:
    """One JSON Lines record."""
    return json.dumps(_clean(record), allow_nan=False) + "\n"


def _document(command: str | None, ok: bool, fields: dict[str, Any]) -> str:
    schema = f"coldctl.{command}/1" if command else "coldctl/1"
    return line({"schema": schema, "command": command, "ok": ok, **fields})


def _fields(result: Any) -> dict[str, Any]:
    return {field.name: _clean(getattr(result, field.name)) for field in dataclasses.fields(result)}


def _clean(value: Any) -> Any:
    """`value` as what JSON knows, with text that can be encoded."""
    if isinstance(value, str):
        return undecoded_as_text(value)
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, dict):
        return {undecoded_as_text(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    return value
