"""Durations, percentages and printed quantities."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base.errors import UsageError
from gpubench.base.units import (
    earned_digits,
    format_bytes,
    format_rate,
    format_seconds,
    format_size,
    parse_duration,
    parse_percent,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("2", 2.0), ("1.5 s", 1.5)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "2 parsecs", "inf", "nan", "1e9", "1000h", "s"])
def test_bad_durations(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_duration(text, option="--budget")


@pytest.mark.parametrize(("text", "share"), [("2", 0.02), ("2%", 0.02), ("0.5", 0.005), ("100 %", 1.0)])
def test_percentages(text, share):
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "101", "-2", "two", "nan"])
def test_bad_percentages(text):
    with pytest.raises(UsageError):
        parse_percent(text)


@given(st.text(max_size=20))
def test_arbitrary_text_never_crashes(text):
    for parse in (parse_duration, parse_percent):
        with contextlib.suppress(UsageError):
            assert parse(text) > 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.234, "1.23 s"), (0.5, "500 ms"), (0.00123456, "1.23 ms"), (0.0009999, "1.00 ms"), (0.001, "1.00 ms"),
        (2.62e-4, "262 us"), (4.63e-7, "463 ns"), (1.2e-11, "0.0120 ns"), (0.0, "0 ns"), (950.0, "950 s"),
        (12345.0, "12300 s"),
    ],
)  # fmt: skip
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_seconds_in_a_given_unit():
    assert format_seconds(0.0123, unit="us", digits=2) == "12000 us"
    with pytest.raises(ValueError, match="unit of time"):
        format_seconds(1.0, unit="weeks")


@given(st.floats(1e-9, 999), st.integers(2, 4))
def test_seconds_read_back_within_the_digits_shown(seconds, digits):
    shown = parse_duration(format_seconds(seconds, digits=digits).replace(" ", ""))
    assert math.isclose(shown, seconds, rel_tol=10.0 ** (1 - digits))


def test_bytes_are_binary():
    assert [format_bytes(n) for n in (0, 512, 1023, 1024, 1536, 139 * 2**30)] == [
        "0 B", "512 B", "1023 B", "1 KiB", "1.5 KiB", "139 GiB",
    ]  # fmt: skip


def test_rates_are_si():
    assert (format_rate(4.22e12, "B/s"), format_rate(999.9e9, "FLOP/s")) == ("4.22 TB/s", "1.00 TFLOP/s")
    assert format_rate(12.0, "FLOP/s") == "12.0 FLOP/s"


def test_sizes():
    assert (format_size(16 * 2**20), format_size(16 * 2**20, table=True)) == ("16777216", "16 M")
    assert [format_size(n, table=True) for n in (4096, 65536)] == ["4096", "64 K"]
    assert (format_size(2**20 + 1, table=True), format_size(2**32, table=True)) == ("1048577", "4 G")


def test_digits_end_at_the_second_uncertain_one():
    assert earned_digits(1.2345, 1.228, 1.240) == 4  # uncertain from the hundredths on
    assert (earned_digits(1.2, 0.9, 1.5), earned_digits(1.0, 1.0, 1.0)) == (3, 4)
    assert earned_digits(1.0, 0.0, 100.0) == 1
