"""Each clause of the rule for SLOWER, FASTER and SAME by itself: sessions for which the answer
turns on that clause alone."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.compare.comparison import CompareOptions, Comparison, JudgedCase
from gpubench.compare.two_runs import compare
from gpubench.result.case import Case, selector
from gpubench.result.run import Block, Run
from tests.unit.report.builders import case, measured
from tests.unit.report.sides import a_run, pair, timed

OTHERS = tuple(case(n=n) for n in (128, 256, 512))
WHAT = case(n=64)
STEADY = (1.0, 1.001, 1.002, 1.003, 1.004)


def judge(base: tuple[float, ...], new: tuple[float, ...], **options: object) -> JudgedCase:
    """The verdict on one case among three that do not change, sessions of both sides in turns."""
    runs = [
        a_run([timed(WHAT, side), *(timed(other, STEADY) for other in OTHERS)], second=second)
        for second, side in enumerate((base, new))
    ]
    return judged(*runs, **options)


def judged(base: Run, new: Run, **options: object) -> JudgedCase:
    return next(
        row
        for row in compare(("base", base), [("new", new)], CompareOptions(**options)).cases
        if row.id == WHAT.id
    )


def clocked(run: Run, hertz: float) -> Run:
    outcomes = [
        msgspec.structs.replace(row, blocks=[msgspec.structs.replace(b, clock_hz=[hertz]) for b in row.blocks])
        for row in run.outcomes
    ]
    return msgspec.structs.replace(run, outcomes=outcomes)


def test_the_joint_test_alone_does_not_call_a_case_slower():
    """One slow session of BASE is left out of the joint statistic; among all ranks it is what makes 5 of 25 pairs."""
    row = judge((*STEADY[:4], 3.0), (1.2, 1.201, 1.202, 1.203, 1.204))
    assert row.p_adjusted is not None
    assert row.p_adjusted <= 0.05 < row.p
    assert (row.verdict, row.reason) == ("UNSURE", "noise")


def test_the_exact_test_alone_does_not_call_a_case_slower():
    """Among sixty unchanged cases some have their sessions in an improbable order: the joint test knows how many there are."""
    base, new = pair(cases=[case(n=n) for n in range(1, 61)], sigma=0.02, seed=3)
    rows = compare(("base", base), [("new", new)], CompareOptions(thresholds=((None, 1e-6),))).cases
    improbable = [row for row in rows if row.ratio > 1 and row.p <= 0.05]
    assert improbable
    assert {(row.verdict, row.p_adjusted > 0.05) for row in improbable} == {("UNSURE", True)}


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.049, "SAME"), (1.051, "SLOWER"), (1 / 1.049, "SAME"), (1 / 1.051, "FASTER")]
)
def test_a_change_has_to_exceed_the_threshold_either_way(ratio, verdict):
    steady = (1.0, 1.0001, 1.0002, 1.0003, 1.0004)
    row = judge(steady, tuple(seconds * ratio for seconds in steady))
    assert row.p == pytest.approx(1 / 252)
    assert row.verdict == verdict


@pytest.mark.parametrize(("low", "verdict"), [(0.951, "UNSURE"), (0.953, "SAME")])
def test_same_ends_at_the_reciprocal_of_the_upper_limit(low, verdict):
    """1 / 1.05 = 0.9524: what is SAME stays SAME when the files change places. Two ties keep it from being FASTER."""
    row = judge((1.0,) * 5, (low, low, low, 1.0, 1.0))
    assert row.p > 0.05
    assert row.verdict == verdict
    assert judge((low, low, low, 1.0, 1.0), (1.0,) * 5).verdict == verdict


@pytest.mark.parametrize(("cycles", "verdict"), [(1.02, "UNSURE"), (1.03, "SLOWER")])
def test_the_ratio_in_cycles_has_to_exceed_half_of_the_threshold(cycles, verdict):
    """10 % more seconds on a clock that was lower."""
    base, new = (a_run([timed(WHAT, [t * f for t in STEADY])], second=i) for i, f in enumerate((1.0, 1.1)))
    row = judged(clocked(base, 2e9), clocked(new, 2e9 * cycles / 1.1))
    assert (row.verdict, row.reason) == (verdict, "clock-limited" if verdict == "UNSURE" else None)


def test_equal_low_ends_are_no_same_where_the_medians_moved():
    """A busy neighbour: most samples of NEW take half as long again, the smallest of each session does not."""

    def run(factor: float, second: int) -> Run:
        blocks = [
            Block(session=i, round=0, position=0, repeat=10_000,
                  wall_s=[1e-3 * level, *(1e-3 * level * factor * more for more in (1.0, 1.01, 1.02, 1.03))])
            for i, level in enumerate(STEADY)
        ]  # fmt: skip
        return a_run([msgspec.structs.replace(measured(WHAT, 1.0), blocks=blocks)], second=second)

    row = judged(run(1.0, 0), run(1.5, 1))
    assert row.new_s > 1.4 * row.base_s
    assert row.low_end_ratio == pytest.approx(1.0, abs=0.02)
    assert (row.verdict, row.reason) == ("UNSURE", "shape")


def test_a_muted_case_takes_no_part_in_the_correction():
    """The joint p of the others is that of a comparison without it, and smaller than with it."""
    muted, family = case(n=32), [WHAT, *(case(n=n) for n in (128, 256, 512, 1024, 2048))]
    runs = pair({WHAT.id: 1.06}, sigma=0.04, seed=9, cases=[*family, muted])
    without = [
        msgspec.structs.replace(run, outcomes=[row for row in run.outcomes if row.case != muted])
        for run in runs
    ]
    row = judged(*runs, ignored=(selector("matmul/n=32"),))
    assert row == judged(*without)
    assert row.p_adjusted < judged(*runs).p_adjusted


def test_cases_of_other_sessions_are_a_family_of_their_own_and_cost_their_part_of_alpha():
    """One of 13 cases missed a session: 12 are relabelled jointly, that one by itself, and every p counts twice."""
    family = [WHAT, *(case(n=n) for n in range(1, 12))]
    more = case(n=32)

    def runs(*short: Case) -> list[Run]:
        found = []
        for second, factor in enumerate((1.0, 1.2)):
            outcomes = [
                timed(what, [t * (factor if what == WHAT else 1.0) for t in (*STEADY, 1.005)])
                for what in (*family, *short)
            ]
            if short:
                outcomes[-1] = msgspec.structs.replace(outcomes[-1], blocks=outcomes[-1].blocks[: 6 - second])
            found.append(a_run(outcomes, 6, second=second))
        return found

    alone, beside = judged(*runs()), judged(*runs(more))
    assert alone.p_adjusted == pytest.approx(1 / 924)
    assert beside.p_adjusted == pytest.approx(2 / 924)


def test_the_order_of_new_files_does_not_change_a_verdict():
    base, first = pair({WHAT.id: 1.3}, sigma=0.02, seed=5)
    _, second = pair({OTHERS[0].id: 0.7}, sigma=0.02, seed=6)
    there = compare(("base", base), [("a", first), ("b", second)], CompareOptions())
    back = compare(("base", base), [("b", second), ("a", first)], CompareOptions())

    def rows(found: Comparison, new: int) -> list[JudgedCase]:
        return [msgspec.structs.replace(row, new=0) for row in found.cases if row.new == new]

    assert rows(there, 0) == rows(back, 1)
    assert rows(there, 1) == rows(back, 0)
    assert {row.verdict for row in there.cases} >= {"SLOWER", "FASTER", "SAME"}
    assert (there.exit_code, there.counts) == (back.exit_code, back.counts)
