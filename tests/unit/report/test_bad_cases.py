"""Runs that lack something, or contradict themselves: every output has an answer, and no wrong one."""

import pytest

from gpubench.analysis.policy import Policy
from gpubench.analysis.winners import ratio_map
from gpubench.report import analyse_runs, draw_report
from gpubench.report.document import report_document
from tests.unit.report.answer_runs import VECTOR, WAITED, answer_run, op_case, op_rows, rising
from tests.unit.report.builders import failed, measured, planned

AT = 100_000
GONE = (16384, 4194304)


def rows(ratios, op="add", **more):
    return op_rows(op, {WAITED: ratios}, **more)


WHOLE = rows(rising(VECTOR, AT))
RUNS = {
    "one size": rows({4096: 0.25}), "never": rows(dict.fromkeys(VECTOR, 0.25)), "always": rows(dict.fromkeys(VECTOR, 4.0)),
    "two crossings": rows({1024: 0.2, 16384: 5.0, 262144: 0.2, 4194304: 5.0, 16777216: 9.0}),
    "fails at some sizes": [
        *(row for row in WHOLE if row.case.device_id != "cupy:0" or row.case.params["n"] not in GONE),
        *(failed(op_case("add", n, WAITED, "cupy:0"), "crashed", "gone") for n in GONE)],
    "a contender at one size": [*WHOLE, measured(op_case("add", 4096, implementation="tuned"), 2e-4, sessions=5)],
    "sessions apart": rows(rising(VECTOR, AT), shifts=(0.7, 0.7, 1.0, 1.4, 1.4)),
    "stopped in the ladder": [
        *rows({1024: 0.1, 65536: 0.8}), *rows({1024: 0.1}, "mul"), *(planned(op_case("mul", n, WAITED, "cupy:0")) for n in VECTOR[1:]),
        *(planned(op_case("relu", n)) for n in VECTOR)],
}  # fmt: skip


def run_of(name):
    stopped = {"complete": False, "exit_reason": "interrupted"} if name == "stopped in the ladder" else {}
    return answer_run(RUNS.get(name, WHOLE), **stopped)


def row_of(name, op="add"):
    return next(row for row in analyse_runs([run_of(name)])[0].break_even if row.op == op)


def screen(name):
    return " ".join(draw_report(analyse_runs([run_of(name)]), "plain").split())


@pytest.mark.parametrize("name", RUNS)
def test_every_output_has_an_answer_and_they_agree(name):
    (analysis,) = analyse_runs([run_of(name)])
    assert all("add" in draw_report([analysis], format) for format in ("plain", "markdown"))
    (cell,) = [lane.strips["cupy:0", WAITED].cell for lane in ratio_map(analysis).lanes if lane.row.op == "add"]
    (row,) = [row for row in report_document([analysis]).break_even if row.op == "add"]
    if cell.kind == "at":
        assert (row.verdict, row.n, row.lo, row.hi) == ("at", cell.n, cell.low, cell.high)
    answer = Policy([run_of(name)]).choose("add", shape=VECTOR[1], regime=WAITED)
    point = next((point for point in row_of(name).points if point.n == VECTOR[1]), None)
    assert point is None or (answer.backend == "cupy") == (point.ratio > 1)


def test_a_size_that_failed_leaves_the_threshold_of_the_others():
    holed = row_of("fails at some sizes")
    assert {point.n for point in holed.points} == set(VECTOR) - {*GONE}
    assert holed.lo <= AT <= holed.hi
    assert holed.n == pytest.approx(row_of("whole").n, rel=0.1)


def test_a_run_stopped_in_its_first_ladder_tells_what_it_has_and_what_it_lacks():
    assert "1 of 3 ops not measured" in screen("stopped in the ladder")
    found = analyse_runs([run_of("stopped in the ladder")])[0].break_even
    assert {row.op for row in found} == {"add", "mul"}
    assert "all-sizes" not in {row.verdict for row in found}
