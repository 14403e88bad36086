"""Options with several values: each once, in their order, and no empty ones."""

from __future__ import annotations

import pytest
import typer

from coldctl.cli.lists import count, listed, one_of


def test_values_come_once_and_in_their_order() -> None:
    assert listed(str)("b, a,b") == ("b", "a")
    assert listed(count)("4,1,04") == (4, 1)


@pytest.mark.parametrize("text", ["", ",", "a,", "a,,b", " , a"])
def test_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="has an empty part"):
        listed(str)(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "²", "٣", "1" * 10])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no number from 1 on"):
        count(text)


def test_one_of_a_few_words() -> None:
    parse = one_of("cold", "warm")
    assert parse("warm") == "warm"
    with pytest.raises(typer.BadParameter, match="'hot' is none of cold, warm"):
        parse("hot")
