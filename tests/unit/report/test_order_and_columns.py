"""`--sort` and `--columns`."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.errors import UsageError
from gpubench.report import analysed, drawn
from gpubench.report.analysis.order import KEYS, ordered
from tests.unit.report.builders import curve, run_of
from tests.unit.report.samples import full_run


def report(format="plain", run=None, **more):
    return drawn(analysed([run or full_run()]), format, **more)


@given(st.sampled_from(KEYS), st.booleans())
def test_sorting_keeps_every_row_and_puts_unknown_last(key, down):
    (before,) = analysed([full_run()])
    after = ordered(before, f"-{key}" if down else key)
    assert sorted(row.id for row in after.cases) == sorted(row.id for row in before.cases)
    assert len(after.speedups) == len(before.speedups)
    if key == "time":
        known = [row.time is not None for row in after.cases]
        assert known == sorted(known, reverse=True)
        times = [row.time.estimate for row in after.cases if row.time]
        assert times == sorted(times, reverse=down)


def test_sorted_speedups_stand_in_one_order():
    ratios = {64: 5.0, 128: 0.5, 256: 50.0, 512: 2.0}
    text = report(run=run_of(curve(ratios)), sections=["speedup"], sort="-speedup")
    assert [float(found) for found in re.findall(r"([\d.]+)x \[", text)][:4] == [50.0, 5.0, 2.0, 0.5]
    assert report("csv", sort="speedup") != report("csv")


def test_columns_come_in_the_order_in_which_they_are_named():
    text = report(sections=["speedup"], columns=["always", "n", "cpu"])
    heads = {line for line in text.splitlines() if re.match(r" *always  ", line)}
    assert {tuple(line.split()[:2]) for line in heads} == {("always", "n")}
    assert "wgpu:0 tuned" not in text
    rows = list(csv.DictReader(io.StringIO(report("csv", columns=["case_id", "time_s"]))))
    assert all(list(row) == ["case_id", "time_s"] for row in rows)


def test_a_table_without_any_of_the_columns_stays_whole():
    assert report(sections=["environment"], columns=["name"]).count("numpy:0") == 0
    with_overheads = report("markdown", columns=["speedup"])
    assert "| device | kind | name |" in with_overheads


@pytest.mark.parametrize("width", [60, 80, 120])
def test_sorted_tables_fit(width):
    for line in report("table", sort="n", width=width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ({"columns": ["alwas"]}, "did you mean 'always'?"),
        ({"sort": "tme"}, "did you mean 'time'?"),
        ({"sort": "--n"}, "did you mean 'n'?"),
        ({"format": "csv", "columns": ["tim_s"]}, "did you mean 'time_s'?"),
        ({"format": "json", "columns": ["time_s"]}, "table, plain, markdown, csv"),
    ],
)
def test_unknown_names_get_a_suggestion(more, hint):
    with pytest.raises(UsageError) as caught:
        report(**more)
    assert hint in caught.value.hint
