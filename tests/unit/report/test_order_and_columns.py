"""`--sort` and `--columns`."""

from __future__ import annotations

import csv
import io
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.analyse import KEYS, order_rows
from gpubench.base.errors import UsageError
from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from tests.unit.report.builders import CPU, GPU, case, curve, measured, run_of
from tests.unit.report.samples import full_run


def report(format="plain", run=None, **more):
    return draw_report(analyse_runs([run or full_run()]), format, RenderOptions(**more))


@given(st.sampled_from(KEYS), st.booleans())
def test_sorting_keeps_every_row_and_puts_unknown_last(key, down):
    (before,) = analyse_runs([full_run()])
    after = order_rows(before, f"-{key}" if down else key)
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
    assert [float(found) for found in re.findall(r"[GC]PU ([\d.]+)x \[", text)][:4] == [50.0, 5.0, 2.0, 2.0]
    assert report("csv", sort="speedup") != report("csv")


def test_a_time_of_the_cpu_says_whose_it_is_where_several_backends_drive_it():
    other = msgspec.structs.replace(CPU, id="blocks:0", backend="blocks")
    cases = [
        measured(case(n=n, device=device), wall_s)
        for n, quick in ((64, "numpy:0"), (128, "blocks:0"))
        for device in ("numpy:0", "blocks:0")
        for wall_s in [1e-3 if device == quick else 2e-3]
    ]
    alone = report(run=run_of(cases, devices=(CPU, other)), sections=["speedup"])
    for device in ("numpy:0", "blocks:0"):
        assert len(re.findall(rf"^matmul +float32 +{device} ", alone, re.M)) == 2
    gpu = [measured(case(n=n, device="cupy:0"), 1e-4) for n in (64, 128)]
    beside = report(run=run_of([*cases, *gpu], devices=(CPU, other, GPU)), sections=["speedup"])
    assert re.search(r"^matmul +64 .* numpy:0 +GPU ", beside, re.M)
    assert re.search(r"^ +128 .* blocks:0 +GPU ", beside, re.M)


def test_columns_come_in_the_order_in_which_they_are_named():
    text = report(sections=["speedup"], columns=["copied", "n", "cpu"])
    heads = {line for line in text.splitlines() if re.match(r" *copied  ", line)}
    assert {tuple(line.split()[:2]) for line in heads} == {("copied", "n")}
    assert "wgpu:0 tuned" not in text
    rows = list(csv.DictReader(io.StringIO(report("csv", columns=["case_id", "time_s"]))))
    assert all(list(row) == ["case_id", "time_s"] for row in rows)


def test_a_table_without_any_of_the_columns_stays_whole():
    assert report(sections=["environment"], columns=["name"]).count("numpy:0") == 0
    with_overheads = report("markdown", columns=["gain"])
    assert "| device | kind | name |" in with_overheads


@pytest.mark.parametrize("width", [60, 80, 120])
def test_sorted_tables_fit(width):
    for line in report("table", sort="n", width=width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ({"columns": ["copid"]}, "did you mean 'copied'?"),
        ({"sort": "tme"}, "did you mean 'time'?"),
        ({"sort": "--n"}, "did you mean 'n'?"),
        ({"format": "csv", "columns": ["tim_s"]}, "did you mean 'time_s'?"),
    ],
)
def test_unknown_names_get_a_suggestion(more, hint):
    with pytest.raises(UsageError) as caught:
        report(**more)
    assert hint in caught.value.hint
