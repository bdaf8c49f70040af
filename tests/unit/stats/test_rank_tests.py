"""The exact rank test, its interval and the false discovery rate: against brute force and by symmetry."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes 2 s to import

from gpubench.curves import stats

# Few different values, so that ties are common.
coarse = st.integers(1, 6).map(float)
side = st.lists(coarse, min_size=1, max_size=5)
times = st.floats(1e-6, 1e3, allow_nan=False)
sessions = st.lists(times, min_size=1, max_size=7)


def brute_force(base, new):
    """Both p-values by trying every way to put the values on two sides."""
    pooled = base + new
    rank = {
        value: sum(1 for other in pooled if other < value) + (pooled.count(value) - 1) / 2 for value in pooled
    }
    seen = sum(rank[value] for value in new)
    sums = [sum(rank[v] for v in chosen) for chosen in itertools.combinations(pooled, len(new))]
    return sum(x >= seen for x in sums) / len(sums), sum(x <= seen for x in sums) / len(sums)


@given(side, side)
def test_the_rank_test_is_the_exact_one_with_ties(base, new):
    assert stats.rank_test(base, new) == pytest.approx(brute_force(base, new))
    assert stats.shift_ratio(base, new)[0] <= stats.shift_ratio(base, new)[2]


@given(sessions, sessions)
def test_the_ratio_is_the_middle_one_of_all_pairs(base, new):
    """Hodges and Lehmann 1963, on logarithms: not the ratio of the medians."""
    logarithms = [math.log(y) - math.log(x) for x in base for y in new]
    assert math.log(stats.shift_ratio(base, new)[1]) == pytest.approx(statistics.median(logarithms), abs=1e-9)


@pytest.mark.parametrize(
    ("k_base", "k_new", "alpha"), [(5, 5, 0.05), (5, 5, 0.10), (8, 8, 0.05), (5, 9, 0.05), (10, 6, 0.10)]
)
def test_the_interval_is_what_the_test_does_not_reject(k_base, k_new, alpha):
    """Dividing `new` by an end of the interval brings the test to the edge of rejection, and not before."""
    chance = random.Random(3)
    base = [math.exp(chance.gauss(0, 0.05)) for _ in range(k_base)]
    new = [math.exp(chance.gauss(0.1, 0.05)) for _ in range(k_new)]
    low, _, high = stats.shift_ratio(base, new, alpha)
    inside = [stats.rank_test(base, [y / at for y in new]) for at in (low * 1.0001, high / 1.0001)]
    outside = [stats.rank_test(base, [y / at for y in new]) for at in (low / 1.0001, high * 1.0001)]
    assert all(min(p) > alpha / 2 for p in inside)
    assert outside[0][0] <= alpha / 2
    assert outside[1][1] <= alpha / 2


def test_at_a_level_of_one_the_interval_is_the_middle_ratio():
    assert stats.shift_ratio([1.0], [1.0, 2.0, 3.0], 1.0) == pytest.approx((2.0, 2.0, 2.0))
    low, _, high = stats.shift_ratio([1.0, 2.0], [3.0, 5.0], 1.0)
    assert (low, high) == (2.5, 3.0), "of four, the middle two"


@pytest.mark.parametrize("p", [0.2, 0.6, 0.9, 0.99])
def test_what_the_quantile_of_student_leaves_out_falls_with_the_fifth_power_of_the_degrees(p):
    """Cornish and Fisher's expansion up to the fourth power: a wrong term would fall more slowly."""

    def left_out(degrees):
        return (stats.student_quantile(p, degrees) - stdtrit(degrees, p)) * degrees**5

    assert left_out(30) == pytest.approx(left_out(10), rel=0.1)
