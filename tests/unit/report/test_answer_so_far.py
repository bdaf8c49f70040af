"""The answer of a run that goes on: its table fills, and only what has changed is derived anew."""

import pytest
from msgspec.structs import replace

from gpubench.analysis import analyse
from gpubench.report.contents import AnswerSoFar
from gpubench.report.layout import RenderOptions
from gpubench.result.run import Selection
from tests.unit.report.answer_runs import (
    SUITE,
    answer_run,
    named_run,
    no_gpu_run,
    one_op_run,
    op_case,
    suite_run,
)
from tests.unit.report.builders import measured
from tests.unit.report.samples import drawn
from tests.unit.report.screens import BOTH, HOST


def after(run, count):
    """The run when so many of its outcomes are known."""
    return replace(run, outcomes=run.outcomes[:count], complete=False, finished_at=None)


def lines(run, width=80):
    return AnswerSoFar(RenderOptions()).lines(run, width)


def test_every_op_has_its_row_from_the_first_cell_on():
    run = suite_run()
    run = replace(run, selection=Selection(ops=list(SUITE)))
    assert lines(after(run, 0)) == []
    early = lines(after(run, 60))
    assert [line.split()[0] for line in early[3:]] == sorted(SUITE)
    known = (60, 200, len(run.outcomes))
    pending = [sum(" ..." in line for line in lines(after(run, count))) for count in known]
    assert pending[0] > pending[1] > pending[2] == 0


def test_overheads_and_ops_that_stay_on_the_host_wait_for_no_row():
    run = answer_run([*BOTH, measured(op_case("gelu", 1000), 2e-3), *HOST])
    run = replace(run, selection=Selection(ops=["add", "copy", "gelu", "launch", "mul"]))
    assert [line.split()[0] for line in lines(run)[3:]] == ["add", "copy", "mul"]


def test_the_whole_table_is_that_of_the_final_screen():
    run = suite_run()
    final = AnswerSoFar(RenderOptions()).lines(run, 80)
    # The screen knows the relatives of an op, and so is surer or less sure.
    screen = drawn(suite_run, sections=("answer",))
    assert {line.replace("~", " ") for line in final} <= set(screen.replace("~", " ").splitlines())


def test_only_ops_with_new_outcomes_are_derived_anew(monkeypatch):
    derived, real = [], analyse.case_results
    monkeypatch.setattr(analyse, "case_results", lambda run: derived.append(run) or real(run))
    run, shown = suite_run(), AnswerSoFar(RenderOptions())
    shown.lines(after(run, len(run.outcomes) - 1), 80)
    assert len(derived) == len(SUITE)
    shown.lines(run, 80)
    (last,) = derived[len(SUITE) :]
    assert {outcome.case.op for outcome in last.outcomes} == {run.outcomes[-1].case.op}


@pytest.mark.parametrize("run", [one_op_run(), named_run(), no_gpu_run()])
@pytest.mark.parametrize("width", [40, 80])
def test_no_state_of_any_run_breaks_the_table(run, width):
    for count in range(0, len(run.outcomes) + 1, 5):
        assert all(len(line) <= width for line in lines(after(run, count), width))
