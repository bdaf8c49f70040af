"""The exact bootstrap of ratios finds its ends without listing all products; here they are listed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import bootstrap

seconds = st.floats(1e-6, 10) | st.sampled_from([0.5, 1.0, 2.0])
side = st.lists(seconds, min_size=1, max_size=9)
pairs = st.lists(st.tuples(side, side), min_size=1, max_size=8)


def listed(data):
    """Every product of every session, as a distribution."""
    atoms = [
        [
            (x / y, p * q)
            for x, p in bootstrap.median_distribution(above)
            for y, q in bootstrap.median_distribution(below)
            if min(p, q) > bootstrap.NEGLIGIBLE
        ]
        for above, below in data
    ]
    return bootstrap.cluster_bootstrap(atoms)


@settings(max_examples=150, deadline=None)
@given(pairs)
def test_the_ends_are_those_of_the_listed_products(data):
    assert bootstrap.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(5, 30), (10, 30), (6, 120)])
def test_also_where_the_products_are_many(k, n):
    draw = random.Random(k)
    data = [([draw.gauss(2, 0.1) for _ in range(n)], [draw.gauss(1, 0.05) for _ in range(n)]) for _ in range(k)]
    assert bootstrap.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)


def test_values_that_a_clock_has_rounded_are_many_products_at_one_place():
    draw = random.Random(3)
    data = [
        tuple([round(draw.gauss(mean, 0.02), 2) for _ in range(100)] for mean in (2.0, 1.0)) for _ in range(6)
    ]
    assert bootstrap.ratio_bootstrap(data) == pytest.approx(listed(data), rel=1e-9)
    constant = [([2.0] * 100, [1.0] * 100)] * 6
    assert bootstrap.ratio_bootstrap(constant) == (2.0, 2.0)


@settings(max_examples=60, deadline=None)
@given(pairs, st.randoms(use_true_random=False), st.integers(-20, 20))
def test_neither_order_nor_unit_matters(data, shuffle, power):
    scale = 2.0**power
    mixed = [
        tuple([value * scale for value in shuffle.sample(one, len(one))] for one in pair)
        for pair in shuffle.sample(data, len(data))
    ]
    assert bootstrap.ratio_bootstrap(mixed) == pytest.approx(bootstrap.ratio_bootstrap(data), rel=1e-9)
