"""The joint permutation correction against its definition, permutation by permutation."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.compare.judge import MAX_RELABELLINGS, QUIET_DEVIATION, max_t
from tests.examples import examples

# No two alike: of equal values it is chance which of them is the slowest.
logs = st.integers(-4000, 4000).map(lambda n: n / 10_000)


@st.composite
def families(draw):
    """(base, new): by case the logarithm of each session's low end; all cases in the same sessions."""
    cases, k_base, k_new = draw(st.integers(1, 3)), draw(st.integers(3, 4)), draw(st.integers(3, 4))
    rows = [
        draw(st.lists(logs, min_size=k_base + k_new, max_size=k_base + k_new, unique=True))
        for _ in range(cases)
    ]
    return [row[:k_base] for row in rows], [row[k_base:] for row in rows]


def statistic(base, new):
    """Difference of the means without the slowest session of each side, over the pooled deviation and a little."""
    base, new = sorted(base)[:-1], sorted(new)[:-1]
    squares = sum(statistics.pvariance(side) * len(side) for side in (base, new))
    deviation = math.sqrt(squares / (len(base) + len(new) - 2))
    return (statistics.fmean(new) - statistics.fmean(base)) / (deviation + QUIET_DEVIATION)


def by_definition(base, new):
    pooled = [ours + theirs for ours, theirs in zip(base, new, strict=True)]
    count, k = len(pooled[0]), len(new[0])
    seen = [statistic(ours, theirs) for ours, theirs in zip(base, new, strict=True)]
    largest, smallest = [], []
    for chosen in itertools.combinations(range(count), k):
        found = [
            statistic([row[i] for i in range(count) if i not in chosen], [row[i] for i in chosen])
            for row in pooled
        ]
        largest.append(max(found))
        smallest.append(min(found))
    return [
        (
            sum(most >= t - 1e-9 for most in largest) / len(largest),
            sum(least <= t + 1e-9 for least in smallest) / len(smallest),
        )
        for t in seen
    ]


def both(found):
    """All p-values in a row: that each case is slower, then that each is faster."""
    return [p for side in zip(*found, strict=True) for p in side]


@settings(max_examples=examples(25), deadline=None)
@given(families())
def test_p_is_the_share_of_permutations_whose_largest_statistic_reaches_that_of_the_case(family):
    assert both(max_t(*family)) == pytest.approx(both(by_definition(*family)))


@pytest.mark.parametrize(
    ("k", "least"), [(5, 1 / 252), (6, 1 / 924), (8, 1 / (2 * (MAX_RELABELLINGS // 2 + 1)))]
)
def test_the_smallest_p_is_that_of_one_permutation(k, least):
    draw = random.Random(k)
    base, new = ([[side + draw.gauss(0, 0.01) for _ in range(k)]] for side in (0.0, 1.0))
    assert (max_t(base, new)[0][0], max_t(base, new)[0][1]) == (pytest.approx(least), 1.0)
