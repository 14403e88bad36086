"""Text from files on its way to a terminal or into JSON."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.report.escape import escape, escape_name, undecoded_as_text

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model.layers.0.weight", "model.layers.0.weight"),
        ("Modèle 模型 🦙", "Modèle 模型 🦙"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("bell\x07 delete\x7f", r"bell\x07 delete\x7f"),
        ("two\nlines\r\ttab", r"two\nlines\r\ttab"),
        ("\x9b31m is CSI in C1", r"\x9b31m is CSI in C1"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066isolate\u2069", r"\u2066isolate\u2069"),
        ("zero\u200bwidth\u200d \ufeff", r"zero\u200bwidth\u200d \ufeff"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("\ue000 private \U000f0000", r"\ue000 private \U000f0000"),
        ("\u3164 filler \ufe0f \U000e0100", r"\u3164 filler \ufe0f \U000e0100"),
        ("\U000e0041 tag", r"\U000e0041 tag"),
        (b"bytes \xff\x80".decode("utf-8", "surrogateescape"), r"bytes \xff\x80"),
        ("\ud800 alone", r"\ud800 alone"),
        ("\u00a0 no-break", r"\xa0 no-break"),
    ],
)
def test_what_cannot_be_seen_is_named(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(ANY_TEXT)
def test_nothing_but_visible_characters_and_plain_spaces_comes_out(text: str) -> None:
    shown = escape(text)
    assert all(character == " " or unicodedata.category(character)[0] in "LMNPS" for character in shown)
    shown.encode("utf-8")


@given(ANY_TEXT, st.integers(20, 200))
def test_no_more_than_the_limit_comes_out(text: str, limit: int) -> None:
    assert len(escape(text, limit)) <= limit


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=120))
def test_a_plain_name_is_left_alone(text: str) -> None:
    assert escape_name(text) == text


def test_a_long_name_keeps_both_ends() -> None:
    shown = escape_name("model." + "x" * 500 + ".weight")
    assert shown.startswith("model.xxx")
    assert shown.endswith("xxx.weight")
    assert "..." in shown
    assert 117 <= len(shown) <= 120


def test_an_escape_is_never_cut_in_two() -> None:
    shown = escape("\x1b" * 1000, limit=50)
    head, tail = shown.split("...")
    assert set(head.split(r"\x1b")) == set(tail.split(r"\x1b")) == {""}


def test_a_name_of_a_hundred_million_characters_costs_nothing() -> None:
    assert len(escape_name("\x1b" * 100_000_000)) <= 120


@given(ANY_TEXT)
def test_for_json_only_what_cannot_be_encoded_changes(text: str) -> None:
    shown = undecoded_as_text(text)
    assert json.loads(json.dumps(shown).encode("ascii")) == shown
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert shown == text
