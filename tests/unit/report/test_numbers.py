"""An estimate and its interval are printed in one unit and with the same digits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.curves.stats import Interval
from gpubench.report.wording import ratio_text, time_interval_text, time_text


def interval(low, estimate, high):
    return Interval(low, estimate, high, "hull")


def decimals(number):
    return len(number.partition(".")[2])


@pytest.mark.parametrize(
    ("low", "estimate", "high", "time", "ends"),
    [
        (68e-6, 72e-6, 187e-6, "72 us", "[68, 187] us"), (99.5e-6, 99.96e-6, 100.4e-6, "100 us", "[100, 100] us"),
        (990e-6, 999.7e-6, 1010e-6, "1.00 ms", "[0.99, 1.01] ms"), (0.435, 0.448, 0.476, "448 ms", "[435, 476] ms"),
    ],
)  # fmt: skip
def test_a_time_and_its_interval_agree(low, estimate, high, time, ends):
    found = interval(low, estimate, high)
    assert (time_text(found), time_interval_text(found)) == (time, ends)


@given(st.floats(1e-9, 1e3), st.floats(0, 0.9), st.floats(0, 3))
def test_any_time_has_the_unit_and_the_decimals_of_its_interval(estimate, below, above):
    found = interval(estimate * (1 - below), estimate, estimate * (1 + above))
    number, unit = time_text(found).split(" ")
    ends, ends_unit = time_interval_text(found).rsplit(" ", 1)
    assert unit == ends_unit
    low, high = ends.strip("[]").split(", ")
    assert decimals(low) == decimals(high) == decimals(number)
    assert float(low) <= float(number) <= float(high)


@given(st.floats(1e-3, 1e4), st.floats(0, 0.9), st.floats(0, 3))
def test_any_ratio_lies_inside_its_printed_interval(estimate, below, above):
    text = ratio_text(interval(estimate * (1 - below), estimate, estimate * (1 + above)))
    number, _, ends = text.partition("x ")
    low, high = ends.strip("[]").split(", ")
    assert decimals(low) == decimals(high) == decimals(number)
    assert float(low) <= float(number) <= float(high)


def test_a_low_end_above_zero_is_not_printed_as_zero():
    assert ratio_text(interval(0.0038, 1.0, 265.9)) == "1.0x [0.004, 265.9]"
