"""No digit of a crossing changes unseen, and the limits that a crossing rests on are those of the tables."""

from __future__ import annotations

import json

import pytest

from gpubench import break_even
from tests.unit.stats import crossing_figures


def test_crossings_are_those_that_were_looked_at():
    known = json.loads(crossing_figures.PATH.read_text(encoding="utf-8"))
    found = crossing_figures.figures()
    assert found.keys() == known.keys()
    for words, values in found.items():
        assert (values is None) == (known[words] is None), words
        assert _numbers(values) == pytest.approx(_numbers(known[words]), rel=1e-6, abs=1e-7), words


def _numbers(values):
    return [-1.0 if value is None else float(value) for value in values or ()]


@pytest.mark.parametrize(
    ("degrees", "exceeded"), [(1, 2.7055), (2, 4.6052), (3, 6.2514), (5, 9.2364), (20, 28.412)]
)
def test_what_chance_exceeds_in_one_of_ten(degrees, exceeded):
    """By the table of the chi-squared distribution."""
    assert break_even.exceeded_by_a_tenth(degrees) == pytest.approx(exceeded, rel=0.025)
