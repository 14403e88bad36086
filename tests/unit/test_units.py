"""Sizes, shares, rates and durations, in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldctl.errors import UsageError
from coldctl.units import (
    format_countdown,
    format_duration,
    format_moment,
    format_rate,
    format_ratio,
    format_share,
    format_size,
    parse_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GiB", 8 * 1024**3),
        ("8Gi", 8 * 1024**3),
        ("8gib", 8 * 1024**3),
        ("8 GiB", 8 * 1024**3),
        ("8GB", 8_000_000_000),
        ("1.5TiB", 3 * 2**39),
        ("0.5kB", 500),
        ("8589934592", 2**33),
        ("8589934592B", 2**33),
        ("0", 0),
    ],
)
def test_a_size_is_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["8G", "8g", "8K", "", "GiB", "-1", "1.5", "1e9", "8GiBs", "0x10", "٣", "8 G iB", "9" * 5000, "9" * 400 + ".5GiB"],
)
def test_what_is_no_clear_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_a_bare_unit_is_refused_with_both_readings() -> None:
    with pytest.raises(UsageError) as refused:
        parse_size("8G")
    assert refused.value.hint == "write 8GiB (binary) or 8GB (decimal)"


@pytest.mark.parametrize(("text", "share"), [("60%", 0.6), ("0.6", 0.6), ("100 %", 1.0), ("0", 0.0), ("1", 1.0)])
def test_a_share_is_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["60", "101%", "-1%", "", "%", "nan", "inf", "half"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_share(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (4 << 20, "4.0 MiB"),
        (16_427_648_819, "15.3 GiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_a_size_is_printed_in_binary_units(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@given(st.integers(0, 10**15))
def test_a_whole_number_of_bytes_survives_a_round_trip(nbytes: int) -> None:
    assert parse_size(str(nbytes)) == nbytes
    assert parse_size(f"{nbytes}KiB") == nbytes * 1024


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1.84e9, "1.84 GB/s"),
        (93e6, "93 MB/s"),
        (999.4e6, "999 MB/s"),
        (999.9e6, "1.00 GB/s"),
        (12_345.0, "12.3 kB/s"),
        (999_900.0, "1 MB/s"),
        (0.0, "0 kB/s"),
    ],
)
def test_a_rate_is_printed_in_decimal_units(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@given(st.floats(0, 1e13))
def test_a_rate_is_never_printed_with_an_exponent_above_zero(rate: float) -> None:
    assert "e+" not in format_rate(rate)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 1, "100 %"), (999_999, 1_000_000, "99.9 %"), (1, 3, "33.3 %"), (1, 5, "20 %"), (0, 7, "0 %"), (0, 0, "100 %")],
)
def test_a_share_is_rounded_down(part: int, whole: int, text: str) -> None:
    assert format_share(part, whole) == text


@given(st.integers(1, 10**18), st.data())
def test_all_is_said_only_of_all(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    assert (format_share(part, whole) == "100 %") == (part == whole)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (12.34, "12.3 s"),
        (60, "1 min 00 s"),
        (247, "4 min 07 s"),
        (3720, "1 h 02 min"),
        (3599.9, "1 h 00 min"),
    ],
)
def test_a_duration_is_printed(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (5.2, "6 s"), (59.5, "1 min 00 s"), (61, "1 min 01 s")])
def test_what_is_left_is_rounded_up_to_seconds(seconds: float, text: str) -> None:
    assert format_countdown(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "0 %"), (0.8, "80 %"), (0.7279, "72.7 %"), (0.9999, "99.9 %"), (1.0, "100 %"), (1.04, "104 %")],
)
def test_a_measured_ratio_is_rounded_down(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.000042, "0.042 ms"),
        (0.0849, "85 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.10 s"),
        (-1.5, "-1.50 s"),
        (-0.02, "-20 ms"),
        (247.0, "4 min 07 s"),
    ],
)
def test_a_moment_may_be_short_or_before_zero(seconds: float, text: str) -> None:
    assert format_moment(seconds) == text
