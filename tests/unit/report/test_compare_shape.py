"""A verdict on the low ends is none on the case where its medians or its slow ends say something else."""

import random

import pytest
from msgspec.structs import replace

from gpubench.result.run import Block
from tests.unit.report.sides import CASES, a_run, compared, timed

CASE = CASES[0]
SECONDS, NOISE = 1e-3, 0.01


def a_side(second, chance, factor, *, k=5, blocks=4, samples=5):
    """A run of one case; `factor(session, block, sample)` is by how much that sample differs."""

    def seconds(session, block):
        return [SECONDS * (1 + chance.gauss(0, NOISE)) * factor(session, block, i) for i in range(samples)]

    measured = [
        Block(session=session, round=block, position=0, repeat=10, wall_s=seconds(session, block))
        for session in range(k)
        for block in range(blocks)
    ]
    return a_run([replace(timed(CASE, [SECONDS] * k), blocks=measured)], k, second=second)


def unchanged(*_):
    return 1.0


def judge(factor, base=unchanged, *, seed=1, **sizes):
    chance = random.Random(seed)
    (row,) = compared(*(a_side(i, chance, which, **sizes) for i, which in enumerate((base, factor)))).cases
    return row


def share_of_blocks(share, by, seed=3):
    chance, moved = random.Random(seed), {}
    return lambda session, block, _: by if moved.setdefault((session, block), chance.random()) < share else 1.0


def share_of_samples(share, by, seed=3):
    chance = random.Random(seed)
    return lambda *_: by if chance.random() < share else 1.0


@pytest.mark.parametrize("by", [0.5, 1.1])
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("shape", [share_of_blocks, share_of_samples])
@pytest.mark.parametrize("sizes", [{}, {"samples": 2}, {"blocks": 1, "samples": 10}], ids=str)
def test_where_most_samples_moved_the_verdict_is_never_same(shape, share, by, sizes):
    wrong = {"SAME", "FASTER"} if by > 1 else {"SAME", "SLOWER"}
    assert judge(shape(share, by), **sizes).verdict not in wrong


@pytest.mark.parametrize("by", [0.7, 1.3])
@pytest.mark.parametrize(("k", "moved"), [(5, 3), (5, 2), (7, 4), (10, 5)])
def test_where_only_some_sessions_moved_the_verdict_is_not_same(k, moved, by):
    assert judge(lambda session, *_: by if session < moved else 1.0, k=k).verdict != "SAME"


@pytest.mark.parametrize(
    ("factor", "median"), [(lambda _, block, __: 2.0 if block < 3 else 1.0, 2.0), (lambda _, __, i: 2.0 if i == 0 else 1.0, 1.0)]
)  # fmt: skip
def test_medians_or_a_slow_end_that_moved_are_no_same(factor, median):
    """Three quarters of the blocks; a quarter of the samples, whose medians stand still."""
    found = judge(factor)
    assert (found.verdict, found.reason, found.sessions_needed) == ("UNSURE", "shape", None)
    ratios = (found.low_end_ratio, found.median_ratio, found.slow_end_ratio)
    assert ratios == pytest.approx((1.0, median, 2.0), rel=0.03)


@pytest.mark.parametrize("by", [0.6, 1.6])
def test_low_ends_that_the_medians_deny_are_no_change_of_the_case(by):
    """One block of four moved on one side alone: its minima, and nothing that a report shows."""

    def moved(_, block, __):
        return by if block == 0 else 1.0

    assert {judge(moved).verdict, judge(unchanged, moved).verdict} == {"UNSURE"}
