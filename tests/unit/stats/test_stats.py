"""Statistics: known answers, invariances, coverage by simulation."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.curves import stats

times = st.floats(1e-9, 1e3, allow_nan=False, allow_infinity=False)
samples = st.lists(times, min_size=1, max_size=12)
sessions = st.lists(samples, min_size=1, max_size=7)
pairs = st.lists(st.tuples(samples, samples), min_size=1, max_size=6)


def test_median_and_quantiles_agree_with_the_standard_library():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    assert stats.median(values) == statistics.median(values)
    ordered = sorted(values)
    expected = statistics.quantiles(values, n=4, method="inclusive")
    assert [stats.quantile(ordered, q) for q in (0.25, 0.5, 0.75)] == pytest.approx(expected)
    assert (stats.quantile(ordered, 0.0), stats.quantile(ordered, 1.0)) == (1.0, 9.0)


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        stats.median([])
    with pytest.raises(ValueError, match="no values"):
        stats.geometric_median([])


@given(st.lists(times, min_size=2, max_size=30))
def test_a_spread_is_what_the_standard_library_says(values):
    found = stats.spread(values)
    twentieths = statistics.quantiles(values, n=20, method="inclusive")
    assert found[:3] == pytest.approx((min(values), twentieths[4], twentieths[14]))
    assert found.mad == pytest.approx(statistics.median(abs(x - statistics.median(values)) for x in values))
    share = (twentieths[14] - twentieths[4]) / statistics.median(values) * len(values) / (len(values) - 1.15)
    assert stats.spread_share(values) == pytest.approx(share)


@pytest.mark.parametrize(
    ("ends", "outliers"),
    [
        ((-4.0, 12.0), 0),  # on the fences
        ((-4.1, 12.0), 1),
        ((-4.1, 12.1), 2),
    ],
)
def test_an_outlier_lies_beyond_a_fence_not_on_it(ends, outliers):
    """Quartiles 2 and 6: Tukey's fences lie 6 beyond them, on both sides."""
    found = stats.spread([ends[0], 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ends[1]])
    assert (found.q1, found.q3) == (2.0, 6.0)
    assert found.outliers == outliers


@pytest.mark.parametrize("n", [1, 5, 6, 8, 9, 12, 30, 100])
def test_order_statistic_interval_covers_95_percent_as_tightly_as_ranks_allow(n):
    low, high = stats.median_interval([float(i) for i in range(1, n + 1)])
    rank = int(low)
    assert high == n + 1 - rank

    def outside(r):  # P(the median lies below x_(r)) = P(Binomial(n, 1/2) < r)
        return sum(math.comb(n, j) for j in range(r)) / 2**n

    assert rank == 1 or outside(rank) <= 0.025
    assert 2 * (rank + 1) > n + 1 or outside(rank + 1) > 0.025


@pytest.mark.parametrize("n", [stats.MOST_EXACT + 1, 1000])
def test_the_median_of_many_samples_has_the_interval_of_the_normal_distribution(n):
    rank = int(stats.median_interval([float(i) for i in range(1, n + 1)])[0])
    below = [sum(math.comb(n, j) for j in range(r)) / 2**n for r in (rank, rank + 1)]
    assert below[0] <= 0.026 < 0.024 + below[1]


def test_a_long_session_counts_no_more_than_a_short_one():
    assert stats.run_interval([[1.0] * 3, [8.0] * 9]).estimate == pytest.approx(math.sqrt(8.0))


@given(sessions)
def test_a_run_value_is_that_of_the_standard_library(data):
    expected = statistics.geometric_mean([statistics.geometric_mean(values) for values in data])
    assert stats.run_interval(data).estimate == pytest.approx(expected)
    assert stats.run_value(data) == pytest.approx(expected)


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4), min_size=5, max_size=9))
def test_from_five_sessions_on_it_is_students_interval_of_their_logarithms(data):
    logs = [statistics.fmean(math.log(value) for value in values) for values in data]
    half = stats.student_quantile(0.975, len(data) - 1) * statistics.stdev(logs) / math.sqrt(len(data))
    interval = stats.run_interval(data)
    assert math.log(interval.high / interval.low) / 2 == pytest.approx(half, abs=1e-12)
    ratio = stats.ratio_interval([(values, [3.0]) for values in data])
    assert math.log(ratio.high / ratio.low) / 2 == pytest.approx(half, abs=1e-12)


@given(sessions)
def test_run_interval_contains_its_estimate(data):
    interval = stats.run_interval(data)
    assert interval.low <= interval.estimate <= interval.high
    assert interval.kind == ("sessions" if len(data) >= 5 else "prior")


@given(samples, st.integers(1, 8))
def test_more_of_the_same_blocks_never_widen(values, times_more):
    """Nor do more of the same sessions, up to those for which the prior stands aside."""
    once, more = stats.run_interval([values]), stats.run_interval([values * times_more])
    assert more.high / more.low <= once.high / once.low * (1 + 1e-12)
    again = stats.run_interval([values] * min(times_more, 4))
    assert again.high / again.low <= once.high / once.low * (1 + 1e-12)
    pair, pairs = (stats.ratio_interval([(values * count, values * count)]) for count in (1, times_more))
    assert pairs.high / pairs.low <= pair.high / pair.low * (1 + 1e-12)


@given(times, st.sampled_from([stats.prior_of(1e-6), stats.prior_of(1e-6, 1e-5), stats.prior_of(1e-2)]))
def test_one_block_has_the_width_of_its_prior(value, prior):
    found = stats.run_interval([[value]], prior)
    sigma = math.hypot(prior.block, prior.session)
    ends = (value * math.exp(-1.96 * sigma), value * math.exp(1.96 * sigma))
    assert (found.low, found.high) == pytest.approx(ends, rel=5e-3)
    ratio = stats.ratio_interval([([value], [value])], (prior, prior))
    assert math.log(ratio.high) == pytest.approx(1.96 * sigma * math.sqrt(2), rel=5e-3)


def test_without_a_prior_one_block_tells_nothing():
    assert stats.run_interval([[2.0]], None)[:3] == (0.0, 2.0, math.inf)
    assert stats.ratio_interval([([2.0, 2.1], [1.0])], None)[0] == 0.0


@pytest.mark.parametrize(("degrees", "table", "short"), [
    (2, 4.302653, 7.46e-3), (3, 3.182446, 1.203e-3), (4, 2.776445, 3.11e-4), (7, 2.364624, 2.07e-5), (29, 2.045230, 0),
])  # fmt: skip
def test_the_quantile_of_students_distribution(degrees, table, short):
    """Against the tables; what the expansion leaves out falls with the fifth power of the degrees."""
    assert 1 - stats.student_quantile(0.975, degrees) / table == pytest.approx(short, rel=0.01, abs=4e-7)


def test_a_speedup_is_paired_by_session():
    """Ratios 3, 3 and 3, however far both sides lie apart; of unpaired medians it were 4."""
    apart = stats.ratio_interval([([15.0] * 6, [5.0] * 6), ([12.0] * 6, [4.0] * 6), ([30.0] * 6, [10.0] * 6)])
    alike = stats.ratio_interval([([15.0] * 6, [5.0] * 6)] * 3)
    assert (apart.estimate, apart[:3]) == (pytest.approx(3.0), pytest.approx(alike[:3]))


def test_noise_measures():
    assert stats.spread_share([10.0, 10.0, 10.0]) == 0.0
    assert stats.spread_share([0.0, 0.0, 0.0, 1.0, 1.0]) == 0.0, "of a median of zero nothing is a share"
    assert stats.first_sample_z([50.0, 1.0, 1.1, 0.9, 1.0, 1.2]) > 10
    assert stats.first_sample_z([2.0, 1.0, 1.0, 1.0]) == math.inf
    assert (stats.first_sample_z([0.5, 1.0, 1.0, 1.0]), stats.first_sample_z([1.0, 1.0])) == (-math.inf, 0.0)
    assert stats.first_sample_z([7.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.6745 * (7 - 3) / 1)
    assert stats.order_correlation([1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.0)
    assert stats.order_correlation([4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert (stats.order_correlation([1.0, 1.0, 1.0]), stats.order_correlation([1.0, 2.0])) == (0.0, 0.0)
    assert stats.order_correlation([1.0, 2.0, 3.0]) == pytest.approx(1.0), "three are enough"
    # Ties share their mean rank: deviations -2, -0.5, -0.5, 2, 1 against -2 ... 2 give 8.5 / sqrt(9.5 * 10).
    assert stats.order_correlation([1.0, 2.0, 2.0, 4.0, 3.0]) == pytest.approx(8.5 / math.sqrt(95))


def test_geometric_mean():
    assert (stats.geometric_mean([2.0, 8.0]), stats.geometric_mean([2.0, 0.0])) == (pytest.approx(4.0), 0.0)
    with pytest.raises(ValueError, match="no values"):
        stats.geometric_mean([])
