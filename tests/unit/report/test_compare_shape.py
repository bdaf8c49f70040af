"""A verdict on the low ends is none on the case where its medians or its slow ends say something else."""

from __future__ import annotations

import random

import msgspec
import pytest

from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.report.comparison import render
from gpubench.report.layout import RenderOptions
from gpubench.result.run import Block
from tests.unit.report.sides import CASES, a_run, timed

CASE = CASES[0]
SECONDS, NOISE = 1e-3, 0.01


def a_side(second, chance, factor, *, k=5, blocks=4, samples=5):
    """A run of one case; `factor(session, block, sample)` is by how much that sample differs."""
    measured = [
        Block(
            session=session, round=block, position=0, repeat=10,
            wall_s=[
                SECONDS * (1 + chance.gauss(0, NOISE)) * factor(session, block, sample) for sample in range(samples)
            ],
        )
        for session in range(k)
        for block in range(blocks)
    ]  # fmt: skip
    outcome = msgspec.structs.replace(timed(CASE, [SECONDS] * k), blocks=measured)
    return a_run([outcome], k, second=second)


def unchanged(*_):
    return 1.0


def judge(factor, base=unchanged, *, seed=1, **sizes):
    chance = random.Random(seed)
    sides = [a_side(second, chance, which, **sizes) for second, which in enumerate((base, factor))]
    return compare(("base", sides[0]), [("new", sides[1])], CompareOptions())


def row(comparison):
    (only,) = comparison.cases
    return only


def share_of_blocks(share, by, seed=3):
    chance, moved = random.Random(seed), {}
    return lambda session, block, _: by if moved.setdefault((session, block), chance.random()) < share else 1.0


def share_of_samples(share, by, seed=3):
    chance = random.Random(seed)
    return lambda *_: by if chance.random() < share else 1.0


@pytest.mark.parametrize("by", [0.5, 0.8, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("shape", [share_of_blocks, share_of_samples])
@pytest.mark.parametrize("sizes", [{}, {"k": 10}, {"samples": 2}, {"blocks": 1, "samples": 10}], ids=str)
def test_where_most_samples_moved_the_verdict_is_never_same(shape, share, by, sizes):
    wrong = {"SAME", "FASTER"} if by > 1 else {"SAME", "SLOWER"}
    assert row(judge(shape(share, by), **sizes)).verdict not in wrong


@pytest.mark.parametrize("by", [0.7, 1.3])
@pytest.mark.parametrize(("k", "moved"), [(5, 3), (5, 2), (7, 4), (10, 5)])
def test_where_only_some_sessions_moved_the_verdict_is_not_same(k, moved, by):
    of_sessions = judge(lambda session, *_: by if session < moved else 1.0, k=k)
    assert row(of_sessions).verdict != "SAME"


def test_a_share_of_the_blocks_is_told_with_the_ratios_that_moved():
    result = judge(lambda _, block, __: 2.0 if block < 3 else 1.0)
    found = row(result)
    assert (found.verdict, found.reason, found.sessions_needed) == ("UNSURE", "shape", None)
    assert found.low_end_ratio == pytest.approx(1.0, rel=0.02)
    assert found.median_ratio == pytest.approx(2.0, rel=0.03)
    assert found.slow_end_ratio == pytest.approx(2.0, rel=0.03)
    text = render(result, "plain", RenderOptions())
    assert "shape: the low ends say one thing, the medians or the slow ends another" in text
    assert f"{found.low_end_ratio:.2f}x" in text
    assert "median_ratio" in render(result, "csv", RenderOptions()).splitlines()[0]


def test_a_slow_end_alone_is_no_same():
    """A quarter of the samples takes twice as long, so the medians stand still."""
    found = row(judge(lambda _, __, sample: 2.0 if sample == 0 else 1.0))
    assert (found.verdict, found.reason) == ("UNSURE", "shape")
    assert found.median_ratio == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("by", [0.6, 1.6])
def test_low_ends_that_the_medians_deny_are_no_change_of_the_case(by):
    """One block of four moved on one side alone: its minima, and nothing that a report shows."""
    fast = judge(lambda _, block, __: by if block == 0 else 1.0)
    slow_base = judge(unchanged, lambda _, block, __: by if block == 0 else 1.0)
    assert {row(fast).verdict, row(slow_base).verdict} == {"UNSURE"}


@pytest.mark.parametrize("by", [0.8, 1.25])
def test_a_change_of_every_sample_is_still_found(by):
    assert row(judge(lambda *_: by)).verdict == ("SLOWER" if by > 1 else "FASTER")


@pytest.mark.parametrize("k", [5, 7, 10])
def test_equal_sides_are_still_the_same(k):
    words = [row(judge(unchanged, seed=seed, k=k)).verdict for seed in range(20)]
    assert words.count("SAME") >= 19


def test_a_change_within_the_threshold_is_the_same():
    assert row(judge(lambda *_: 1.02)).verdict == "SAME"
