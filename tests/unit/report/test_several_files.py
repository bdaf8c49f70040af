"""Several files in one report: machines side by side, and the history of one."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse, machine_runs
from gpubench.compare.judge import find_steps
from gpubench.report import render
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.machines import history_chart, history_text, letter
from tests.examples import examples
from tests.unit.report.parts import BOTH, days_of, of_machine


def test_the_dates_of_a_history_are_text_in_its_axis():
    hostile = "2026-01-01T'+x//"
    (side,) = machine_runs([analyse(of_machine({1024: 4.0}, started=at)) for at in (hostile, hostile + "2")])
    ends = history_chart(side, "A").spec["encoding"]["x"]["axis"]["labelExpr"]
    assert ends == """datum.value > 0 ? "2026-01-01 '+x//2" : "2026-01-01 '+x//" """.strip()


def test_a_history_of_ten_commits_marks_the_step_where_it_is_sure():
    noise = random.Random(5)
    days = days_of(
        [1e-3 * (1.3 if i >= 6 else 1.0) * (1 + noise.gauss(0, 0.01)) for i in range(10)], label="commit"
    )
    shown = render(days, "plain", sections=["history"], width=120)
    assert re.search(r"2026-01-07 commit6: 1\.[23]\dx \[1\.\d+, 1\.\d+\] +matmul/n=1024", shown), shown
    assert "surely changed: 2 of 2 cases;" in shown
    (side,) = machine_runs([analyse(day) for day in days])
    triangles = history_chart(side, "A").spec["layer"][-1]["data"]["values"]
    assert [round(row["factor"], 1) for row in triangles] == [1.3, 1.3]
    # Five runs cannot tell a step from chance, and neither can ten without one.
    for some in (days[4:9], [*days[:6], *days[:4]]):
        assert "surely changed: 0 of" in render(some, "plain", sections=["history"])


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 6), st.sampled_from([0.6, 1.5]))
def test_a_step_of_one_case_among_others_is_found_at_its_run(seed, run, factor):
    noise = random.Random(seed)
    times = {
        f"case{i}": [(factor if i == 0 and k >= run else 1.0) * (1 + noise.gauss(0, 0.01)) for k in range(10)]
        for i in range(8)
    }
    steps = find_steps(times | {"gap": [None, *times["case1"][1:]]}, 0.10)
    assert [step.run for step in steps.pop("case0")] == [run]
    assert not any(steps.values())


@pytest.mark.parametrize(
    ("times", "bars"),
    [((1.0, 2.0, 3.0), "▁▅█"), ((1.0, 1.01, 0.99), "▄▄▄"), ((1.0, None, 2.0), "▁ █"), ((2.0, 1.0), "█▁")],
)
def test_bars(times, bars):
    assert history_text(times, RenderOptions()) == bars
    assert history_text(times, RenderOptions(ascii_only=True)).isascii()


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(60, 120), st.integers(2, 12), st.text(min_size=1, max_size=200), st.booleans(), st.sampled_from(["table", "plain"])
)  # fmt: skip
def test_any_number_of_machines_fits(width, count, name, ascii_only, format):
    runs = [of_machine({64: 0.5, 1024: 40.0}, cpu=f"{i} {name}", label=name) for i in range(count)]
    text = render(runs, format, sections=BOTH, width=width, ascii_only=ascii_only)
    assert all(len(line) <= width for line in text.splitlines())
    assert "Machines side by side" in text


def test_markdown_rows_keep_their_shape():
    runs = [of_machine({64: 0.5, 1024: 40.0}, cpu=name, label=name) for name in ("a|b", "<script>", "`x`")]
    text = render(runs, "markdown", sections=BOTH)
    assert "<script" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@pytest.mark.parametrize(("starts", "count"), [((6,), 12), ((7, 14), 20)])
def test_beside_a_step_there_is_none_and_several_are_told(starts, count):
    """Where it is moved by a run or two the test is as sure: the slowest run of a side does not count."""
    noise = random.Random(1)
    times = [2.0 ** sum(i >= start for start in starts) * (1 + noise.gauss(0, 0.01)) for i in range(count)]
    assert tuple(step.run for step in find_steps({"a": times}, 0.1)["a"]) == starts


def test_letters_never_run_out():
    assert [letter(i) for i in (0, 25, 26, 52)] == ["A", "Z", "A1", "A2"]
