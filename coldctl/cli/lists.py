"""Options that take several values with commas between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


class Listed(tuple[Any, ...]):
    """The values of one option, each once, in their order."""


def listed(parse: Callable[[str], Any]) -> Callable[[str], Listed]:
    """A parser for a list of what `parse` takes. It raises typer.BadParameter for an empty part, as `parse` does."""

    def parse_all(text: str) -> Listed:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise typer.BadParameter(f"{text!r} has an empty part")
        return Listed(dict.fromkeys(parse(part) for part in parts))

    return parse_all


def count(text: str) -> int:
    """A whole number from 1 on. Raises typer.BadParameter for all else."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise typer.BadParameter(f"{text!r} is no number from 1 on")
    return int(text)


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser for one of `choices`. It raises typer.BadParameter for all else."""

    def parse(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse
