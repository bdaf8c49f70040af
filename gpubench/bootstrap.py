"""The bootstrap of medians, evaluated exactly instead of by random draws (measurement.md, section 6).

Resampling one session's samples gives its median a discrete distribution with binomial weights. Resampling sessions
mixes those, and the median of k draws from the mixture has a binomial-tail distribution function. Pure functions of the
standard library.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

Atoms = Sequence[tuple[float, float]]  # a discrete distribution: (value, probability)

ALPHA = 0.05
# Atoms of a session's distribution below this probability are dropped from ratios: n * m products stay few, and what is
# lost is far below the 2.5 % that an interval's end has to resolve.
NEGLIGIBLE = 1e-7
# What may lie beyond an end with seven sessions, in sessions; a whole one would be too much by what is dropped above.
SEVENS_END = 0.99
# A ratio's end is narrowed down until so few products are left that sorting them is cheap.
FEW = 64
NARROWINGS = 60


def binomial_tail(n: int, p: float, m: int) -> float:
    """P(X >= m) for X ~ Binomial(n, p)."""
    if m <= 0 or p >= 1.0:
        return 1.0
    if m > n or p <= 0.0:
        return 0.0
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    terms = (
        math.exp(log_n - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * log_p + (n - j) * log_q)
        for j in range(m, n + 1)
    )
    return min(1.0, math.fsum(terms))


@functools.lru_cache(maxsize=512)
def _median_weights(n: int) -> tuple[float, ...]:
    """Probability that the median of n draws with replacement from n ordered values is the i-th of them.

    P(m-th smallest draw <= x_(i)) = P(Binomial(n, i/n) >= m). With even n the median lies between the two
    middle draws; the mixture of both is used, which is a little wider and keeps the support at n values.
    """
    middles = {(n + 1) // 2, n // 2 + 1}
    cumulated = [0.0]
    for i in range(1, n + 1):
        cumulated.append(sum(binomial_tail(n, i / n, m) for m in middles) / len(middles))
    return tuple(high - low for low, high in itertools.pairwise(cumulated))


def median_distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Bootstrap distribution of the median of one session, exactly: (value, probability), values ascending."""
    return list(zip(sorted(values), _median_weights(len(values)), strict=True))


@functools.lru_cache(maxsize=256)
def _level(k: int, m: int, tail: float) -> float:
    """The p at which P(Binomial(k, p) >= m) = tail, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(k, middle, m) < tail else (low, middle)
    return high


def _masses(k: int) -> tuple[float, float]:
    """Probability that the k mixed distributions together hold below either end of the interval.

    The m-th smallest of k draws has distribution function P(Binomial(k, F) >= m). Even k takes the lower middle draw
    for the low end and the upper one for the high end, which is slightly wide. 7 is the one odd k from 5 on whose exact
    ends would lie one session further in, where they cover 87.5 % if sessions scatter far more than the samples in
    them: less than a session lies beyond either end there.
    """
    low, high = _level(k, (k + 1) // 2, ALPHA / 2) * k, _level(k, k // 2 + 1, 1 - ALPHA / 2) * k
    return (min(low, SEVENS_END), max(high, k - SEVENS_END)) if k == 7 else (low, high)


def cluster_bootstrap(distributions: Sequence[Atoms]) -> tuple[float, float]:
    """Percentile interval of the median of k draws, each from the mixture of the k sessions' distributions.

    This is the bootstrap that resamples sessions, then samples inside them.
    """
    atoms = sorted(atom for distribution in distributions for atom in distribution)
    low, high = _masses(len(distributions))
    return _quantile_of(atoms, low), _quantile_of(atoms, high)


def ratio_bootstrap(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """The same of the ratio of two medians, of which each session gives both: (numerator's, denominator's) samples."""
    quotients = [_Quotient.of(above, below) for above, below in pairs]
    low, high = _masses(len(pairs))
    return _ratio_quantile(quotients, low), _ratio_quantile(quotients, high)


class _Quotient(NamedTuple):
    """X / Y of two independent discrete distributions, without listing its n * m values.

    `x` is ascending and distinct; `cumulated[i]` is the probability of the first i of them. `y` has its own.
    """

    x: tuple[float, ...]
    cumulated: tuple[float, ...]
    y: Atoms

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> _Quotient:
        """The distributions of both medians, without negligible atoms, equal values as one."""
        x, y = _distinct(above), _distinct(below)
        return cls(
            tuple(value for value, _ in x), tuple(itertools.accumulate((p for _, p in x), initial=0.0)), y
        )

    def atoms(self, low: float, high: float) -> list[tuple[float, float]]:
        """The values above `low` and up to `high`, with their probabilities."""
        x, cumulated, right = self.x, self.cumulated, bisect.bisect_right
        return [
            (x[i] / value, q * (cumulated[i + 1] - cumulated[i]))
            for value, q in self.y
            for i in range(right(x, low * value), right(x, high * value))
        ]


def _distinct(values: Sequence[float]) -> Atoms:
    atoms = [atom for atom in median_distribution(values) if atom[1] > NEGLIGIBLE]
    if len({value for value, _ in atoms}) == len(atoms):
        return atoms
    grouped = itertools.groupby(atoms, key=operator.itemgetter(0))
    return [(value, math.fsum(p for _, p in equal)) for value, equal in grouped]


def _ratio_quantile(quotients: Sequence[_Quotient], mass: float) -> float:
    """The smallest ratio up to which the quotients together hold `mass`.

    The ends of the search close in on it by the line through both, or halve their distance where that is slow, until
    few values are left between them, which are then sorted.
    """
    low = min(one.x[0] / one.y[-1][0] for one in quotients) * (1 - 1e-9)
    high = max(one.x[-1] / one.y[0][0] for one in quotients) * (1 + 1e-9)
    (below, first), (above, last) = _up_to(quotients, low), _up_to(quotients, high)
    for turn in range(NARROWINGS):
        if last - first <= FEW:
            break
        share = 0.5 if turn % 3 == 2 else min(max((mass - below) / (above - below), 0.1), 0.9)
        middle = low * (high / low) ** share
        reached, rank = _up_to(quotients, middle)
        if reached >= mass - 1e-12:
            high, above, last = middle, reached, rank
        else:
            low, below, first = middle, reached, rank
    return _quantile_of(sorted(atom for one in quotients for atom in one.atoms(low, high)), mass - below)


def _up_to(quotients: Sequence[_Quotient], ratio: float) -> tuple[float, int]:
    """The probability that the quotients together hold up to `ratio`, and the number of values there."""
    right, mass, rank = bisect.bisect_right, 0.0, 0
    for x, cumulated, ys in quotients:
        for value, q in ys:
            at = right(x, ratio * value)
            mass += q * cumulated[at]
            rank += at
    return mass, rank


def _quantile_of(atoms: Atoms, mass: float) -> float:
    """The smallest value at which the cumulated probability reaches `mass`; atoms sorted by value."""
    cumulated = 0.0
    for value, probability in atoms:
        cumulated += probability
        if cumulated >= mass - 1e-12:
            return value
    return atoms[-1][0]
