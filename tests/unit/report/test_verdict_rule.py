"""Each clause of the rule for SLOWER, FASTER and SAME by itself: sessions for which the answer
turns on that clause alone."""

import math
import random

import pytest
from msgspec.structs import replace

from gpubench.compare.comparison import CompareOptions
from gpubench.compare.judge import MAX_RELABELLINGS, max_t
from gpubench.curves import stats
from gpubench.result.case import selector
from gpubench.result.run import Block
from tests.unit.report.builders import case
from tests.unit.report.sides import a_run, clocked, compared, pair, timed

OTHERS = tuple(case(n=n) for n in (128, 256, 512))
WHAT = case(n=64)
STEADY = (1.0, 1.001, 1.002, 1.003, 1.004)


def judge(base, new):
    """The verdict on one case among three that do not change, sessions of both sides in turns."""
    rest = [timed(other, STEADY) for other in OTHERS]
    return judged(*(a_run([timed(WHAT, side), *rest], second=i) for i, side in enumerate((base, new))))


def judged(base, new, **options):
    return next(row for row in compared(base, new, CompareOptions(**options)).cases if row.id == WHAT.id)


def test_the_joint_test_alone_does_not_call_a_case_slower():
    """One slow session of BASE is left out of the joint statistic; among all ranks it is what makes 5 of 25 pairs."""
    row = judge((*STEADY[:4], 3.0), (1.2, 1.201, 1.202, 1.203, 1.204))
    assert row.p_adjusted <= 0.05 < row.p
    assert (row.verdict, row.reason) == ("UNSURE", "noise")
    far = judge((*STEADY[:4], 3.0), (2.9, 2.901, 2.902, 2.903, 2.904))
    assert (far.verdict, far.sessions_needed) == ("UNSURE", 6), "one session more is the least advice"


def test_the_exact_test_alone_does_not_call_a_case_slower():
    """Among sixty unchanged cases some have their sessions in an improbable order: the joint test knows how many there are."""
    sides = pair(cases=[case(n=n) for n in range(1, 61)], sigma=0.02, seed=3)
    rows = compared(*sides, CompareOptions(thresholds=((None, 1e-6),))).cases
    improbable = {(row.verdict, row.p_adjusted > 0.05) for row in rows if row.ratio > 1 and row.p <= 0.05}
    assert improbable == {("UNSURE", True)}


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.049, "SAME"), (1.051, "SLOWER"), (1 / 1.049, "SAME"), (1 / 1.051, "FASTER")]
)
def test_a_change_has_to_exceed_the_threshold_either_way(ratio, verdict):
    steady = (1.0, 1.0001, 1.0002, 1.0003, 1.0004)
    row = judge(steady, tuple(seconds * ratio for seconds in steady))
    assert (row.p, row.verdict) == (pytest.approx(1 / 252), verdict)


@pytest.mark.parametrize(("slow", "at", "below"), [(1.2, "UNSURE", "SLOWER"), (1.01, "SAME", "UNSURE")])
def test_a_limit_is_exceeded_by_more_than_it_alone(slow, at, below):
    """A ratio at the threshold is no change, and an interval that ends there is SAME."""
    base, new = (a_run([timed(WHAT, [t * f for t in STEADY])], second=i) for i, f in enumerate((1.0, slow)))
    lows = [[min(block.wall_s) for block in run.outcomes[0].blocks] for run in (base, new)]
    reached = stats.shift_ratio(*lows, 0.10)[1 if slow > 1.1 else 2]
    for limit, verdict in ((reached, at), (math.nextafter(reached, 0), below)):
        row = judged(base, new, thresholds=((None, limit - 1),))
        assert (1 + row.threshold, row.verdict) == (limit, verdict)


@pytest.mark.parametrize(("low", "verdict"), [(0.951, "UNSURE"), (0.953, "SAME")])
def test_same_ends_at_the_reciprocal_of_the_upper_limit(low, verdict):
    """1 / 1.05 = 0.9524: what is SAME stays SAME when the files change places. Two ties keep it from being FASTER."""
    there, back = judge((1.0,) * 5, (low, low, low, 1.0, 1.0)), judge((low, low, low, 1.0, 1.0), (1.0,) * 5)
    assert there.p > 0.05
    assert (there.verdict, back.verdict) == (verdict, verdict)


@pytest.mark.parametrize(("cycles", "verdict"), [(1.02, "UNSURE"), (1.03, "SLOWER")])
def test_the_ratio_in_cycles_has_to_exceed_half_of_the_threshold(cycles, verdict):
    """10 % more seconds on a clock that was lower."""
    base, new = (a_run([timed(WHAT, [t * f for t in STEADY])], second=i) for i, f in enumerate((1.0, 1.1)))
    row = judged(clocked(base, 2e9), clocked(new, 2e9 * cycles / 1.1))
    assert (row.verdict, row.reason) == (verdict, "clock-limited" if verdict == "UNSURE" else None)


def test_a_muted_case_takes_no_part_in_the_correction():
    """The joint p of the others is that of a comparison without it, and smaller than with it."""
    muted, family = case(n=32), [WHAT, *(case(n=n) for n in (128, 256, 512, 1024, 2048))]
    runs = pair({WHAT.id: 1.06}, sigma=0.04, seed=9, cases=[*family, muted])
    without = [replace(run, outcomes=[row for row in run.outcomes if row.case != muted]) for run in runs]
    row = judged(*runs, ignored=(selector("matmul/n=32"),))
    assert row == judged(*without)
    assert row.p_adjusted < judged(*runs).p_adjusted


@pytest.mark.parametrize(("short", "p"), [((), 1 / 924), ((case(n=32),), 2 / 924)])
def test_cases_of_other_sessions_are_a_family_of_their_own_and_cost_their_part_of_alpha(short, p):
    """One of 13 cases missed a session: 12 are relabelled jointly, that one by itself, and every p counts twice."""
    runs = []
    for second, factor in enumerate((1.0, 1.2)):
        sessions, cases = (*STEADY, 1.005), (WHAT, *(case(n=n) for n in range(1, 12)), *short)
        rows = [timed(what, [t * (factor if what == WHAT else 1.0) for t in sessions]) for what in cases]
        if short:
            rows[-1] = replace(rows[-1], blocks=rows[-1].blocks[: 6 - second])
        runs.append(a_run(rows, 6, second=second))
    assert judged(*runs).p_adjusted == pytest.approx(p)


@pytest.mark.parametrize(
    ("k", "least"), [(5, 1 / 252), (6, 1 / 924), (8, 1 / (2 * (MAX_RELABELLINGS // 2 + 1)))]
)
def test_the_smallest_p_is_that_of_one_permutation(k, least):
    draw = random.Random(k)
    base, new = ([[side + draw.gauss(0, 0.01) for _ in range(k)]] for side in (0.0, 1.0))
    assert max_t(base, new) == [(pytest.approx(least), 1.0)]
    assert max_t(new, base) == [(1.0, pytest.approx(least))]


# ---------------------------------------------------------------- what medians and slow ends say


def a_side(second, chance, factor, *, k=5, blocks=4, samples=5):
    """A run of one case; `factor(session, block, sample)` is by how much that sample differs."""

    def seconds(session, block):
        return [1e-3 * (1 + chance.gauss(0, 0.01)) * factor(session, block, i) for i in range(samples)]

    measured = [
        Block(session=session, round=block, position=0, repeat=10, wall_s=seconds(session, block))
        for session in range(k)
        for block in range(blocks)
    ]
    return a_run([replace(timed(WHAT, [1e-3] * k), blocks=measured)], k, second=second)


def unchanged(*_):
    return 1.0


def judge_shape(factor, base=unchanged, *, seed=1, **sizes):
    chance = random.Random(seed)
    (row,) = compared(*(a_side(i, chance, which, **sizes) for i, which in enumerate((base, factor)))).cases
    return row


@pytest.mark.parametrize("by", [0.7, 1.3])
def test_where_only_some_sessions_moved_the_verdict_is_not_same(by):
    assert judge_shape(lambda session, *_: by if session < 3 else 1.0).verdict != "SAME"


@pytest.mark.parametrize(
    ("factor", "median"), [(lambda _, block, __: 2.0 if block < 3 else 1.0, 2.0), (lambda _, __, i: 2.0 if i == 0 else 1.0, 1.0)]
)  # fmt: skip
def test_medians_or_a_slow_end_that_moved_are_no_same(factor, median):
    """Three quarters of the blocks; a quarter of the samples, whose medians stand still."""
    found = judge_shape(factor)
    assert (found.verdict, found.reason, found.sessions_needed) == ("UNSURE", "shape", None)
    ratios = (found.low_end_ratio, found.median_ratio, found.slow_end_ratio)
    assert ratios == pytest.approx((1.0, median, 2.0), rel=0.03)


@pytest.mark.parametrize("by", [0.6, 1.6])
def test_low_ends_that_the_medians_deny_are_no_change_of_the_case(by):
    """One block of four moved on one side alone: its minima, and nothing that a report shows."""

    def moved(_, block, __):
        return by if block == 0 else 1.0

    assert {judge_shape(moved).verdict, judge_shape(unchanged, moved).verdict} == {"UNSURE"}
