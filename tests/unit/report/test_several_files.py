"""Several files in one report: machines side by side, and the history of one."""

import random
import re

import pytest

from gpubench.analysis.analyse import analyse, common_sizes, machine_runs
from gpubench.report import render
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.machines import history_chart, history_text
from tests.unit.report.parts import days_of, of_machine


def test_the_dates_of_a_history_are_text_in_its_axis():
    hostile = "2026-01-01T'+x//"
    (side,) = machine_runs([analyse(of_machine({1024: 4.0}, started=at)) for at in (hostile, hostile + "2")])
    ends = history_chart(side, "A").spec["encoding"]["x"]["axis"]["labelExpr"]
    assert ends == """datum.value > 0 ? "2026-01-01 '+x//2" : "2026-01-01 '+x//" """.strip()


@pytest.mark.parametrize(
    ("second", "sizes"), [(None, [4096]), ({1024: 4.0, 2048: 2.0}, [1024]), ({2048: 2.0}, [])]
)
def test_machines_are_compared_at_the_largest_size_that_all_of_them_have(second, sizes):
    sides = [machine_runs([analyse(of_machine(by))])[0] for by in ({1024: 4.0, 4096: 4.0}, second) if by]
    assert list(common_sizes(sides).values()) == sizes


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


@pytest.mark.parametrize(("times", "bars"), [
    ((1.0, 2.0, 3.0), "▁▅█"), ((1.0, 1.01, 0.99), "▄▄▄"), ((1.0, None, 2.0), "▁ █"), ((2.0, 1.0), "█▁"),
])  # fmt: skip
def test_bars(times, bars):
    assert history_text(times, RenderOptions()) == bars
    assert history_text(times, RenderOptions(ascii_only=True)).isascii()
