"""Statistics: known answers, invariances, and tests of ranks against brute force."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes 2 s to import

from gpubench.curves import stats

times = st.floats(1e-9, 1e3, allow_nan=False, allow_infinity=False)
samples = st.lists(times, min_size=1, max_size=12)
sessions = st.lists(samples, min_size=1, max_size=7)


def test_means_of_values():
    assert (stats.geometric_mean([2.0, 8.0]), stats.geometric_mean([2.0, 0.0])) == (pytest.approx(4.0), 0.0)
    for mean in (stats.median, stats.geometric_median, stats.geometric_mean):
        with pytest.raises(ValueError, match="no values"):
            mean([])


@given(st.lists(times, min_size=2, max_size=30))
def test_a_spread_is_what_the_standard_library_says(values):
    found = stats.spread(values)
    twentieths = statistics.quantiles(values, n=20, method="inclusive")
    assert found[:3] == pytest.approx((min(values), twentieths[4], twentieths[14]))
    assert found.mad == pytest.approx(statistics.median(abs(x - statistics.median(values)) for x in values))
    share = (twentieths[14] - twentieths[4]) / statistics.median(values) * len(values) / (len(values) - 1.15)
    assert stats.spread_share(values) == pytest.approx(share)


@pytest.mark.parametrize("n", [1, 5, 6, 8, 9, 30, 100, 256 + 1, 1000])
def test_order_statistic_interval_covers_95_percent_as_tightly_as_ranks_allow(n):
    low, high = stats.median_interval([float(i) for i in range(1, n + 1)])
    rank = int(low)
    assert high == n + 1 - rank

    def outside(r):  # P(the median lies below x_(r)) = P(Binomial(n, 1/2) < r)
        return sum(math.comb(n, j) for j in range(r)) / 2**n

    assert rank == 1 or outside(rank) <= 0.025 + (n > 256) * 1e-3
    assert 2 * (rank + 1) > n + 1 or outside(rank + 1) > 0.025 - (n > 256) * 1e-3


@given(sessions)
def test_a_run_value_is_that_of_the_standard_library(data):
    expected = statistics.geometric_mean([statistics.geometric_mean(values) for values in data])
    assert stats.run_interval(data).estimate == pytest.approx(expected)
    assert stats.run_value(data) == pytest.approx(expected)


near = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4)


@given(st.lists(near, min_size=2, max_size=9))
def test_sessions_tell_their_mean_from_five_on_and_before_that_beside_the_prior(data):
    """Student's interval of their logarithms; docs/statistics.md says how much the prior counts."""
    prior, count = stats.USUAL, len(data)
    logs = [[math.log(value) for value in values] for values in data]
    squares, degrees = statistics.pvariance(list(map(statistics.fmean, logs))) * count, count - 1
    if count < 5:
        blocks = [
            (statistics.pvariance(values) * len(values) + 2 * prior.block**2)
            / (len(values) + 3) * stats.student_quantile(0.975, len(values) + 3) ** 2 / len(values)
            for values in logs
        ]  # fmt: skip
        squares += 2 * (prior.session**2 + statistics.fmean(blocks) / stats.Z**2)
        degrees += 4
    half = stats.student_quantile(0.975, degrees) * math.sqrt(squares / degrees / count)
    interval = stats.run_interval(data)
    assert interval.kind == ("sessions" if count >= 5 else "prior")
    assert math.log(interval.high / interval.estimate) == pytest.approx(half, abs=1e-12)
    assert math.log(interval.estimate / interval.low) == pytest.approx(half, abs=1e-12)
    alone = stats.ratio_interval([(values, [3.0]) for values in data])
    assert count < 5 or math.log(alone.high / alone.low) / 2 == pytest.approx(half, abs=1e-12)


@given(st.lists(st.tuples(near, near), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_speedup_is_paired_by_session_whichever_side_and_in_whatever_order(data, chance):
    """What both sides of a session have in common cancels."""
    there = stats.ratio_interval(data)
    back = stats.ratio_interval([(case, base) for base, case in data])
    products = [there.estimate * back.estimate, there.low * back.high, there.high * back.low]
    assert products == pytest.approx([1.0] * 3)
    both = zip(data, [chance.uniform(0.1, 10) for _ in data], strict=True)
    moved = [tuple([value * by for value in side] for side in pair) for pair, by in both]
    chance.shuffle(moved)
    assert stats.ratio_interval(moved)[:3] == pytest.approx(there[:3])


@given(times, st.sampled_from([stats.prior_of(1e-6), stats.prior_of(1e-6, 1e-5), stats.prior_of(1e-2)]))
def test_one_block_has_the_width_of_its_prior(value, prior):
    found = stats.run_interval([[value]], prior)
    sigma = math.hypot(prior.block, prior.session)
    ends = (value * math.exp(-1.96 * sigma), value * math.exp(1.96 * sigma))
    assert (found.low, found.high) == pytest.approx(ends, rel=5e-3)
    ratio = stats.ratio_interval([([value], [value])], (prior, prior))
    assert math.log(ratio.high) == pytest.approx(1.96 * sigma * math.sqrt(2), rel=5e-3)


def test_an_interval_around_another_estimate_has_the_same_relative_width():
    assert stats.Interval(1.0, 2.0, 6.0, "prior").around(4.0) == (2.0, 4.0, 12.0, "prior")


@pytest.mark.parametrize(("a", "b", "kind"), [
    ("sessions", "sessions", "sessions"), ("sessions", "prior", "prior"), ("prior", "sessions", "prior"), ("prior", "prior", "prior"),
])  # fmt: skip
def test_two_intervals_together_are_as_weak_as_the_weaker(a, b, kind):
    assert stats.weaker(a, b) == kind


def test_without_a_prior_one_block_tells_nothing():
    assert stats.run_interval([[2.0]], None)[:3] == (0.0, 2.0, math.inf)
    assert stats.ratio_interval([([2.0, 2.1], [1.0])], None)[0] == 0.0


def test_noise_measures():
    assert stats.spread_share([10.0, 10.0, 10.0]) == 0.0
    assert stats.spread_share([0.0, 0.0, 0.0, 1.0, 1.0]) == 0.0, "of a median of zero nothing is a share"
    assert stats.order_correlation([1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.0)
    assert stats.order_correlation([4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert (stats.order_correlation([1.0, 1.0, 1.0]), stats.order_correlation([1.0, 2.0])) == (0.0, 0.0)
    assert stats.order_correlation([1.0, 2.0, 3.0]) == pytest.approx(1.0), "three are enough"
    # Ties share their mean rank: deviations -2, -0.5, -0.5, 2, 1 against -2 ... 2 give 8.5 / sqrt(9.5 * 10).
    assert stats.order_correlation([1.0, 2.0, 2.0, 4.0, 3.0]) == pytest.approx(8.5 / math.sqrt(95))


# ---------------------------------------------------------------- tests of ranks, and quantiles

# Few different values, so that ties are common.
coarse = st.integers(1, 6).map(float)
side = st.lists(coarse, min_size=1, max_size=5)


def brute_force(base, new):
    """Both p-values by trying every way to put the values on two sides."""
    pooled = base + new
    below = {value: sum(other < value for other in pooled) for value in pooled}
    rank = {value: below[value] + (pooled.count(value) - 1) / 2 for value in pooled}
    seen = sum(rank[value] for value in new)
    sums = [sum(rank[v] for v in chosen) for chosen in itertools.combinations(pooled, len(new))]
    return sum(x >= seen for x in sums) / len(sums), sum(x <= seen for x in sums) / len(sums)


@given(side, side)
def test_the_rank_test_is_the_exact_one_with_ties(base, new):
    assert stats.rank_test(base, new) == pytest.approx(brute_force(base, new))
    assert stats.shift_ratio(base, new)[0] <= stats.shift_ratio(base, new)[2]


@given(samples, samples)
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


@pytest.mark.parametrize("p", [0.2, 0.6, 0.9, 0.975])
def test_what_the_quantile_of_student_leaves_out_falls_with_the_fifth_power_of_the_degrees(p):
    """Cornish and Fisher's expansion up to the fourth power: a wrong term would fall more slowly."""

    def left_out(degrees):
        return (stats.student_quantile(p, degrees) - stdtrit(degrees, p)) * degrees**5

    assert left_out(30) == pytest.approx(left_out(10), rel=0.1)


def test_who_falls_short_of_its_like_does_so_by_more_than_chance():
    """One false suspect in twenty fleets, by the normal distribution: 3.9 deviations at 1,024 looks, 4.66 at 32,000."""
    assert stats.growing_k(0) == stats.growing_k(214) == 3.5 < stats.growing_k(216)
    assert [stats.growing_k(looks) for looks in (1024, 32_000)] == pytest.approx([3.90, 4.66], abs=0.01)
    assert stats.robust_spread([8.0, 10.0, 14.0]) == pytest.approx(2 * 1.4826 / 10)
    groups = [(4, 10), (5, 10), (5, 500), (6, 599), (6, 600)]
    assert [stats.is_uniform(*group) for group in groups] == [True, False, True, False, True]
    assert (stats.TOLERANCE, stats.FEWEST_PEERS) == (0.05, 4), "as docs/fleet.md says"
