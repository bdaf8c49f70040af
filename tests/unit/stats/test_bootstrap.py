"""The exact bootstrap against all resamples one by one; that of ratios, which lists no products, against all of them."""

import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import stats
from tests.examples import examples

seconds = st.floats(1e-6, 10) | st.sampled_from([0.5, 1.0, 2.0])
side = st.lists(seconds, min_size=1, max_size=9)
pairs = st.lists(st.tuples(side, side), min_size=1, max_size=8)


def listed(data):
    """Every product of every session, however improbable, as a distribution."""
    atoms = [
        [
            (x / y, p * q)
            for x, p in stats.median_distribution(above)
            for y, q in stats.median_distribution(below)
        ]
        for above, below in data
    ]
    return stats.cluster_bootstrap(atoms)


@settings(max_examples=examples(150), deadline=None)
@given(pairs)
def test_the_ends_are_those_of_the_listed_products(data):
    assert stats.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(5, 30), (10, 30), (6, 120)])
def test_also_where_the_products_are_many(k, n):
    draw = random.Random(k)
    data = [([draw.gauss(2, 0.1) for _ in range(n)], [draw.gauss(1, 0.05) for _ in range(n)]) for _ in range(k)]
    assert stats.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)


def test_values_that_a_clock_has_rounded_are_many_products_at_one_place():
    draw = random.Random(3)
    data = [
        tuple([round(draw.gauss(mean, 0.02), 2) for _ in range(100)] for mean in (2.0, 1.0)) for _ in range(6)
    ]
    assert stats.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)
    constant = [([2.0] * 100, [1.0] * 100)] * 6
    assert stats.ratio_bootstrap(constant) == (2.0, 2.0)


@settings(max_examples=examples(60), deadline=None)
@given(pairs, st.randoms(use_true_random=False), st.integers(-20, 20))
def test_neither_order_nor_unit_matters(data, shuffle, power):
    scale = 2.0**power
    mixed = [
        tuple([value * scale for value in shuffle.sample(one, len(one))] for one in pair)
        for pair in shuffle.sample(data, len(data))
    ]
    assert stats.ratio_bootstrap(mixed) == pytest.approx(stats.ratio_bootstrap(data), rel=1e-9)


value = st.integers(1, 9).map(float)  # few of them, so that ties are common


def resampled_medians(values, middle):
    """The median of every way to draw as many values with replacement: value -> probability."""
    draws = Counter(middle(drawn) for drawn in itertools.product(values, repeat=len(values)))
    return {found: count / len(values) ** len(values) for found, count in draws.items()}


def merged(atoms):
    found = Counter()
    for at, probability in atoms:
        found[at] += probability
    return {at: probability for at, probability in found.items() if probability > 1e-12}


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(value, min_size=1, max_size=5))
def test_the_distribution_of_a_sessions_median_is_that_of_all_its_resamples(values):
    low, high = (
        resampled_medians(values, middle) for middle in (statistics.median_low, statistics.median_high)
    )
    both = {at: (low.get(at, 0) + high.get(at, 0)) / 2 for at in low.keys() | high.keys()}
    assert merged(stats.median_distribution(values)) == pytest.approx(both)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(3, 4).flatmap(
        lambda k: st.lists(st.lists(value, min_size=3, max_size=3), min_size=k, max_size=k)
    )
)
def test_the_interval_of_a_run_is_that_of_all_its_resamples(data):
    """Sessions drawn with replacement, samples inside each; an even number of sessions has its lower middle median at
    the low end and the upper one at the high end."""
    atoms = [
        (at, probability / len(data)) for values in data for at, probability in resampled_medians(values, statistics.median).items()
    ]  # fmt: skip
    mixed = list(merged(atoms).items())
    medians = Counter(), Counter()
    for drawn in itertools.product(mixed, repeat=len(data)):
        probability = 1.0
        for _, share in drawn:
            probability *= share
        values = [at for at, _ in drawn]
        medians[0][statistics.median_low(values)] += probability
        medians[1][statistics.median_high(values)] += probability
    ends = []
    for found, level in zip(medians, (stats.ALPHA / 2, 1 - stats.ALPHA / 2), strict=True):
        ordered = sorted(found)
        reached = itertools.accumulate(found[at] for at in ordered)
        ends.append(next(at for at, mass in zip(ordered, reached, strict=True) if mass >= level - 1e-9))
    assert stats.cluster_bootstrap([stats.median_distribution(values) for values in data]) == tuple(ends)


@pytest.mark.parametrize("k", range(5, 41))
def test_sessions_that_scatter_far_more_than_their_samples_are_covered_too(k):
    """Such a session is one value. The r-th of k values and its mirror image hold the median but for 2 P(Bin(k, 1/2) < r)."""
    low, high = stats.cluster_bootstrap([[(float(i), 1.0)] for i in range(1, k + 1)])
    assert high == k + 1 - low
    outside = sum(math.comb(k, j) for j in range(int(low))) / 2**k
    assert 1 - 2 * outside >= 0.90
