"""Runs that lack something, or contradict themselves: every output has an answer, and no wrong one."""

import pytest

from gpubench.analysis.policy import Policy
from gpubench.analysis.winners import ratio_map
from gpubench.report import analyse_runs, render
from gpubench.report.document import report_document
from tests.unit.report.answer_runs import VECTOR, WAITED, answer_run, op_case, op_rows, rising
from tests.unit.report.builders import failed, measured, planned

AT = 100_000


def row_of(run, op="add"):
    (analysis,) = analyse_runs([run])
    return next(row for row in analysis.break_even if row.op == op)


ONE_SIZE = op_rows("add", {WAITED: {4096: 0.25}})
NEVER = op_rows("add", {WAITED: dict.fromkeys(VECTOR, 0.25)})
ALWAYS_WINS = op_rows("add", {WAITED: dict.fromkeys(VECTOR, 4.0)})
TWICE = op_rows("add", {WAITED: {1024: 0.2, 16384: 5.0, 262144: 0.2, 4194304: 5.0, 16777216: 9.0}})
HOLED = [
    *(row for row in op_rows("add", {WAITED: rising(VECTOR, AT)})
      if not (row.case.device_id == "cupy:0" and row.case.params["n"] in (16384, 4194304))),
    *(failed(op_case("add", n, WAITED, "cupy:0"), "crashed", "gone") for n in (16384, 4194304)),
]  # fmt: skip
LONELY = [
    *op_rows("add", {WAITED: rising(VECTOR, AT)}),
    measured(op_case("add", 4096, implementation="tuned"), 2e-4, sessions=5),
]
TORN = op_rows("add", {WAITED: rising(VECTOR, AT)}, shifts=(0.7, 0.7, 1.0, 1.4, 1.4))
BROKEN_OFF = [
    *op_rows("add", {WAITED: {1024: 0.1, 65536: 0.8}}), *op_rows("mul", {WAITED: {1024: 0.1}}),
    *(planned(op_case("mul", n, WAITED, "cupy:0")) for n in VECTOR[1:]),
    *(planned(op_case("relu", n)) for n in VECTOR),
]  # fmt: skip
RUNS = {
    "one size": ONE_SIZE, "never": NEVER, "always": ALWAYS_WINS, "two crossings": TWICE, "fails at some sizes": HOLED,
    "a contender at one size": LONELY, "sessions apart": TORN, "stopped in the ladder": BROKEN_OFF,
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_output_has_an_answer_and_they_agree(name):
    more = {"complete": False, "exit_reason": "interrupted"} if name == "stopped in the ladder" else {}
    run = answer_run(RUNS[name], **more)
    (analysis,) = analyse_runs([run])
    document = report_document([analysis])
    for format in ("plain", "markdown", "html"):
        assert "add" in render([run], format)
    (cell,) = [lane.strips["cupy:0", WAITED].cell for lane in ratio_map(analysis).lanes if lane.row.op == "add"]
    (row,) = [row for row in document.break_even if row.op == "add"]
    if cell.kind == "at":
        assert (row.verdict, row.n, row.lo, row.hi) == ("at", cell.n, cell.low, cell.high)
    answer = Policy([run]).choose("add", shape=VECTOR[1], regime=WAITED)
    point = next((point for point in row_of(run).points if point.n == VECTOR[1]), None)
    if point is not None:
        assert (answer.backend == "cupy") == (point.ratio > 1)


def test_one_size_says_who_wins_there_and_nothing_of_a_threshold():
    found = row_of(answer_run(ONE_SIZE))
    assert (found.verdict, found.n, found.first, found.last) == ("no-size", None, 4096, 4096)
    assert "> 4 K" in render([answer_run(ONE_SIZE)], "plain", sections=("answer",))


def test_of_two_crossings_the_last_one_is_told_as_mixed():
    found = row_of(answer_run(TWICE))
    assert found.mixed
    assert 262144 < found.lo < found.n < found.hi < 4194304


def test_a_size_that_failed_leaves_the_threshold_of_the_others():
    whole, holed = (row_of(answer_run(rows)) for rows in (op_rows("add", {WAITED: rising(VECTOR, AT)}), HOLED))
    assert {point.n for point in holed.points} == set(VECTOR) - {16384, 4194304}
    assert holed.lo <= AT <= holed.hi
    assert holed.n == pytest.approx(whole.n, rel=0.1)


def test_a_contender_that_was_timed_at_one_size_counts_there_alone():
    """At 4 K the other implementation is five times as fast as plain NumPy: that gain falls, and no threshold moves."""
    plain, lonely = (
        row_of(answer_run(rows)) for rows in (op_rows("add", {WAITED: rising(VECTOR, AT)}), LONELY)
    )
    assert lonely.n == pytest.approx(plain.n, rel=0.02)
    gains = [{point.n: point.ratio for point in row.points} for row in (plain, lonely)]
    assert gains[1][4096] == pytest.approx(gains[0][4096] / 5, rel=0.02)
    assert {n: gain for n, gain in gains[1].items() if n != 4096} == pytest.approx(
        {n: gain for n, gain in gains[0].items() if n != 4096}
    )


def test_sessions_that_disagree_by_2x_widen_the_interval_and_hold_the_threshold():
    calm, torn = (row_of(answer_run(rows)) for rows in (op_rows("add", {WAITED: rising(VECTOR, AT)}), TORN))
    assert torn.hi / torn.lo > 1.5 * calm.hi / calm.lo
    assert torn.lo <= AT <= torn.hi


def test_a_run_stopped_in_its_first_ladder_tells_what_it_has_and_what_it_lacks():
    run = answer_run(BROKEN_OFF, complete=False, exit_reason="interrupted")
    text = render([run], "plain", sections=("answer",))
    assert "1 of 3 ops not measured" in " ".join(text.split())
    assert {row.op for row in analyse_runs([run])[0].break_even} == {"add", "mul"}
    assert all(row_of(run, op).verdict != "all-sizes" for op in ("add", "mul"))
