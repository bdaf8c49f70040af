"""Cells of a CSV file."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.report.layout import csv_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "true"), (1048576, "1048576"), (0.000123456789, "0.000123457"), (-1.5, "-1.5"), (("a", "b"), "a b"),
        ((), ""), ("=1+1", "'=1+1"), ("-x", "'-x"), ("a\n b", "a b"), ("NVIDIA H200", "NVIDIA H200"),
    ],
)  # fmt: skip
def test_a_value_as_text(value, text):
    assert csv_text(value) == text


@given(st.lists(st.text(), min_size=1))
def test_texts_come_back_as_they_were_written(texts):
    cells = [csv_text(text) for text in texts]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerow(["first", *cells])
    assert list(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [["first", *cells]]
