"""The chart of speedup against size: what it draws, where, and how wide."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.report import render
from tests.examples import examples
from tests.unit.report.builders import CPU, GPU, SOFTWARE, curve, run_of
from tests.unit.report.samples import cpu_run, full_run

RISING = {64: 0.25, 256: 0.8, 1024: 4.0, 4096: 30.0}
GREEN, RED = "\x1b[32m", "\x1b[31m"


def chart(run, format="plain", **more):
    return render([run], format, sections=["chart"], **more)


def test_the_gpu_wins_above_the_line_of_one():
    lines = chart(run_of(curve(RISING))).splitlines()
    one = next(i for i, line in enumerate(lines) if line.lstrip().startswith("1x"))
    rows = {i: line.count("q") for i, line in enumerate(lines) if re.match(r" *([\d.]+x)?[│┤┼]", line)}
    assert sum(count for i, count in rows.items() if i < one) == 2
    assert sum(count for i, count in rows.items() if i > one) == 2
    assert rows[one] == 0
    assert lines[-1].split() == ["64", "256", "1024", "4096"]
    assert [line.split("x")[0].strip() for line in lines if re.match(r" *[\d.]+x", line)] == [
        "100",
        "10",
        "1",
        "0.1",
    ]


def test_colour_follows_direction():
    text = chart(run_of(curve(RISING)), "table", color=True)
    above, _, below = text.partition("┼")
    assert GREEN in above
    assert RED not in above
    assert RED in below
    assert GREEN not in below


def test_every_regime_has_a_letter_so_that_colour_is_not_needed():
    outcomes = [
        *curve(RISING),
        *curve(RISING, regime="transfer-once"),
        *curve(RISING, regime="transfer-always"),
    ]
    text = chart(run_of(list({outcome.id: outcome for outcome in outcomes}.values())))
    assert "q queued: " in text
    assert "n 10 calls: " in " ".join(text.split())
    assert "c copied: " in " ".join(text.split())


def test_ascii_draws_with_ascii():
    text = chart(run_of(curve(RISING)), "table", ascii_only=True)
    assert text.isascii()
    assert "?" not in text
    assert re.search(r"^ +1x\+-", text, re.M)


def test_a_terminal_draws_few_charts_and_other_formats_none_unasked():
    assert "Speedup against size" in render([run_of(curve(RISING))], "table")
    assert "Speedup against size" not in render([run_of(curve(RISING))], "plain")
    assert "Speedup against size" not in render([run_of(curve(RISING))], "markdown")
    gpus = [msgspec.structs.replace(GPU, id=f"cupy:{i}") for i in range(3)]
    outcomes = {outcome.id: outcome for gpu in gpus for outcome in curve(RISING, device=gpu.id)}
    run = run_of(list(outcomes.values()), devices=(CPU, *gpus))
    assert "Speedup against size" not in render([run], "table")
    assert chart(run).count("matmul float32 on") == 3


def test_markdown_fences_the_chart():
    text = chart(run_of(curve(RISING)), "markdown")
    assert text.count("~~~") == 2


@pytest.mark.parametrize("run", [cpu_run(), run_of([]), run_of(curve({64: 2.0}))])
def test_no_curve_no_chart(run):
    assert "Speedup against size" not in chart(run)


def test_software_adapters_have_no_chart():
    run = run_of(curve(RISING, device="wgpu:0"), devices=(CPU, SOFTWARE))
    assert "Speedup against size" not in chart(run)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.dictionaries(st.integers(1, 2**40), st.floats(1e-4, 1e4), min_size=2, max_size=12),
    st.integers(60, 120),
    st.booleans(),
)
def test_any_curve_fits(ratios, width, ascii_only):
    text = chart(run_of(curve(ratios, sessions=1)), "table", width=width, ascii_only=ascii_only)
    assert all(len(line) <= width for line in text.splitlines())
    assert "┼" in text or "+-" in text


def test_the_full_run_shows_its_losses():
    text = chart(full_run())
    assert "matmul float32 on cupy:0 (Test GPU)" in text
    assert "relu float32 on cupy:0 (Test GPU)" in text
    assert "wgpu" not in text
