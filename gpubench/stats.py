"""Statistics of timings: medians, intervals over sessions, noise measures, fits. Standard library only.

Every function is pure: the same answer for the same values, whatever the order of sessions. "Sessions" are lists
of block values, one list per session. Sessions and the blocks inside them are what is repeated; samples of one block
share its luck, so they never stand for themselves (docs/statistics.md). Intervals are 95 % intervals.

The bootstrap of medians is evaluated exactly instead of by random draws. Resampling one session's blocks gives its
median a discrete distribution with binomial weights. Resampling sessions mixes those, and the median of k draws from
the mixture has a binomial-tail distribution function.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

IntervalKind = Literal["bootstrap", "prior"]

MIN_BOOTSTRAP_SESSIONS = 5
ALPHA = 0.05
# sigma / MAD for normal noise.
MAD_SIGMA = 1.4826
# Atoms of a session's distribution below this probability are dropped from ratios: n * m products stay few, and what is
# lost is far below the 2.5 % that an interval's end has to resolve.
NEGLIGIBLE = 1e-7
# What may lie beyond an end with seven sessions, in sessions; a whole one would be too much by what is dropped above.
SEVENS_END = 0.99
# Up to so many draws a binomial distribution is summed term by term; the normal one that stands for it beyond is
# within 0.0003 of it near its middle, which is where a median's ends lie, and costs no sum.
MOST_EXACT = 256
# A ratio's end is narrowed down until so few products are left that sorting them is cheap.
FEW = 64
NARROWINGS = 60
# Half the width of an interval in ln, beyond which it knows nothing.
FARTHEST = 100.0


class Interval(NamedTuple):
    """`low <= estimate <= high`, in the unit of the values. `kind` says what the interval rests on.

    "bootstrap": on the sessions alone. "prior": on too few sessions to know how far they differ, so a stated prior
    stands beside them.
    """

    low: float
    estimate: float
    high: float
    kind: IntervalKind


class IntervalLike(Protocol):
    """What has an estimate between two ends: an `Interval`, or a time of a document."""

    @property
    def low(self) -> float:
        """The lower end."""

    @property
    def estimate(self) -> float:
        """The typical value."""

    @property
    def high(self) -> float:
        """The upper end."""

    @property
    def kind(self) -> IntervalKind:
        """What it may be used for."""


class Spread(NamedTuple):
    """Where the samples lie, all in the unit of the samples, and how many are outliers by Tukey's fences."""

    minimum: float
    q1: float
    q3: float
    mad: float
    outliers: int


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones. Raises ValueError on no values."""
    return quantile(sorted(values), 0.5)


def geometric_median(values: Iterable[float]) -> float:
    """As `median`, with the geometric mean of two middle values, so that median(1/r) = 1/median(r)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else math.sqrt(low) * math.sqrt(high)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of values sorted ascending, by linear interpolation between ranks (Hyndman-Fan type 7)."""
    if not ordered:
        raise ValueError("no values")
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    share = position - below
    if share == 0.0:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return low + (high - low) * share


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def spread(values: Sequence[float]) -> Spread:
    """The least value, the quartiles, the MAD, and how many values lie more than 1.5 IQR beyond the quartiles."""
    ordered = sorted(values)
    q1, q3 = (quantile(ordered, q) for q in (0.25, 0.75))
    outliers = sum(1 for value in ordered if max(q1 - value, value - q3) > 1.5 * (q3 - q1))
    return Spread(ordered[0], q1, q3, mad(ordered), outliers)


# The quartiles of few normal values lie this much too near each other: (n - FEW_QUARTILES) / n of what many show.
FEW_QUARTILES = 1.15


def spread_share(values: Sequence[float]) -> float:
    """Interquartile range / median, as many such values would show it: the noise of one session."""
    ordered, count = sorted(values), len(values)
    middle = quantile(ordered, 0.5)
    if middle <= 0 or count < 2:
        return 0.0
    return (quantile(ordered, 0.75) - quantile(ordered, 0.25)) / middle * count / (count - FEW_QUARTILES)


def first_sample_z(values: Sequence[float]) -> float:
    """Modified z-score of the first value: 0.6745 (x - median) / MAD (Iglewicz and Hoaglin 1993)."""
    deviation = values[0] - median(values)
    scale = mad(values)
    if scale > 0:
        return 0.6745 * deviation / scale
    return math.copysign(math.inf, deviation) if deviation else 0.0


def order_correlation(values: Sequence[float]) -> float:
    """Spearman's rank correlation of the values against their order; 0 when it is undefined."""
    n = len(values)
    if n < 3:
        return 0.0
    # Sums of products of ranks, which are exact, less those of the mean: a report asks this of every sample.
    ranks, squared_mean = _ranks(values), n * ((n - 1) / 2) ** 2
    covariance = sum(map(operator.mul, ranks, range(n))) - squared_mean
    variance = sum(map(operator.mul, ranks, ranks)) - squared_mean
    steps = n * (n * n - 1) / 12
    return covariance / math.sqrt(variance * steps) if variance > 0 else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    if len(set(values)) == len(values):
        for place, i in enumerate(order):
            ranks[i] = float(place)
        return ranks
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2
        start = end + 1
    return ranks


@functools.lru_cache(maxsize=512)
def _median_rank(n: int) -> int:
    """The largest r with P(Binomial(n, 1/2) < r) <= 2.5 %, at least 1: the interval is [x_(r), x_(n+1-r)]."""
    rank = 1
    while 2 * (rank + 1) <= n + 1 and 1.0 - binomial_tail(n, 0.5, rank + 1) <= ALPHA / 2:
        rank += 1
    return rank


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Order-statistic interval of the median. Below 6 values it is [min, max], which covers less than 95 %."""
    ordered = sorted(values)
    rank = _median_rank(len(ordered))
    return ordered[rank - 1], ordered[-rank]


class Prior(NamedTuple):
    """What is known before anything is measured: standard deviations of ln(time) from block to block inside a
    session, and from session to session."""

    block: float
    session: float


# Of launches below and above SHORT_S, in the files in results/ (docs/statistics.md).
SHORT_S = 1e-3
SHORT_BLOCK, LONG_BLOCK = 0.15, 0.08
# Where launching costs more than half of the time, and elsewhere.
LAUNCH_SESSION, USUAL_SESSION = 0.10, 0.05
USUAL = Prior(LONG_BLOCK, USUAL_SESSION)


def prior_of(seconds: float, overhead_s: float = 0.0) -> Prior:
    """The prior of a launch that takes so long on a device whose empty launch takes `overhead_s`."""
    return Prior(
        SHORT_BLOCK if seconds < SHORT_S else LONG_BLOCK,
        LAUNCH_SESSION if seconds < 2 * overhead_s else USUAL_SESSION,
    )


Z = 1.959964  # the 97.5 % quantile of the normal distribution


def t_quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's distribution, by its expansion around the normal one (Fisher and Cornish 1960):
    within 1 % from 2 degrees of freedom on, 11 % too small at 1."""
    z, d = Z, degrees
    return (
        z
        + (z**3 + z) / (4 * d)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * d**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * d**4)
    )


# A prior counts as so many degrees of freedom. With 4 of them and the mean variance s^2 the quantile of Student's
# distribution gives +-1.96 s before anything is measured.
PRIOR_DEGREES = 4
# Variance of the median / that of the mean, of 1 to 5 normal values; more have that of many.
MEDIAN_COSTS = (1.0, 1.0, 1.35, 1.19, 1.43)


def median_cost(count: int) -> float:
    """Variance of the median of so many values / that of their mean, for normal noise."""
    return MEDIAN_COSTS[count - 1] if count <= len(MEDIAN_COSTS) else math.pi / 2


def squared_margin(squares: float, degrees: int, prior: float | None) -> float:
    """(half-width of the interval of one value)^2 where its deviations have this sum of `squares` with so many
    `degrees` of freedom, and the variance `prior` is expected; None: nothing is. Infinite where nothing is known."""
    if prior is not None:
        squares += prior * (PRIOR_DEGREES - 2)
        degrees += PRIOR_DEGREES
    return squares / degrees * t_quantile(degrees) ** 2 if degrees > 0 else math.inf


def _deviations(values: Sequence[float], middle: float) -> float:
    """The sum of the squares of ln(value) around its mean."""
    logs = [math.log(value / middle) for value in values]
    mean = math.fsum(logs) / len(logs)
    return math.fsum((value - mean) ** 2 for value in logs)


def _block_margin(blocks: Sequence[float], prior: Prior | None) -> float:
    """(half-width of ln(median) of the blocks of one session)^2: what is known of this session."""
    count = len(blocks)
    expected = None if prior is None else prior.block**2
    squares = _deviations(blocks, median(blocks))
    return squared_margin(squares, count - 1, expected) * median_cost(count) / count


def _few_sessions(
    values: Sequence[float], estimate: float, known: Sequence[float], between: float | None
) -> Interval:
    """The interval of fewer than MIN_BOOTSTRAP_SESSIONS sessions with these values around their middle one.

    `known` has the squared half-width of each from its blocks, `between` the variance of ln(value) that is expected
    between sessions. Without it, of one session the interval knows the blocks alone.
    """
    count = len(values)
    if between is None and count == 1:
        squared = known[0]
    else:
        expected = None if between is None else between + math.fsum(known) / count / Z**2
        squares = _deviations(values, estimate)
        squared = squared_margin(squares, count - 1, expected) * median_cost(count) / count
    # Infinite where nothing is known; whatever is known has ends that a caller may divide by.
    factor = math.exp(min(math.sqrt(squared), FARTHEST)) if squared < math.inf else math.inf
    return Interval(estimate / factor, estimate, estimate * factor, "prior")


def run_interval(sessions: Sequence[Sequence[float]], prior: Prior | None = USUAL) -> Interval:
    """Run value = median of the session values, which are the medians of their blocks, with its interval.

    From 5 sessions on: the exact cluster bootstrap, sessions, then blocks. Below that the variance between sessions is
    that of those seen and of the prior; None: of those seen alone, and one block tells nothing.
    """
    values = [median(blocks) for blocks in sessions]
    if len(sessions) >= MIN_BOOTSTRAP_SESSIONS:
        low, high = cluster_bootstrap([median_distribution(blocks) for blocks in sessions])
        return _around(low, median(values), high)
    known = [_block_margin(blocks, prior) for blocks in sessions]
    return _few_sessions(values, median(values), known, None if prior is None else prior.session**2)


BOTH_USUAL = (USUAL, USUAL)


def ratio_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], priors: tuple[Prior, Prior] | None = BOTH_USUAL
) -> Interval:
    """Median over sessions of median(baseline) / median(case), with its interval as that of `run_interval`.

    `pairs` holds (blocks of the baseline, blocks of the case) of each session that measured both, `priors` theirs.
    """
    ratios = [median(base) / median(case) for base, case in pairs]
    estimate = geometric_median(ratios)
    if len(pairs) >= MIN_BOOTSTRAP_SESSIONS:
        low, high = ratio_bootstrap(pairs)
        return _around(low, estimate, high)
    sides = (None, None) if priors is None else priors
    known = [math.fsum(map(_block_margin, pair, sides)) for pair in pairs]
    between = None if priors is None else math.fsum(prior.session**2 for prior in priors)
    return _few_sessions(ratios, estimate, known, between)


def _around(low: float, estimate: float, high: float) -> Interval:
    return Interval(min(low, estimate), estimate, max(high, estimate), "bootstrap")


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; 0 where one of the values is. Raises ValueError on no values."""
    if not values:
        raise ValueError("no values")
    if min(values) == 0:
        return 0.0
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


@functools.lru_cache(maxsize=64)
def _rank_sums(ranks: tuple[int, ...], k: int) -> tuple[int, ...]:
    """In how many ways k of these ranks have the sum 0, 1, 2, ...

    Each number holds the counts of all sums side by side, so that one shift and one addition serve them all.
    """
    width = len(ranks) + 1
    ways = [1] + [0] * k
    for rank in ranks:
        for taken in range(k, 0, -1):
            ways[taken] += ways[taken - 1] << (rank * width)
    mask = (1 << width) - 1
    return tuple(ways[k] >> (at * width) & mask for at in range(sum(ranks) + 1))


def smallest_p(k_base: int, k_new: int) -> float:
    """The smallest one-sided p that the exact rank test can reach with so many sessions a side."""
    return 1 / math.comb(k_base + k_new, k_new)


def rank_test(base: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Exact one-sided Mann-Whitney test: (p that `new` is larger, p that it is smaller). Ties share their ranks."""
    doubled = [round(2 * rank) for rank in _ranks([*base, *new])]
    ways = _rank_sums(tuple(sorted(doubled)), len(new))
    seen = sum(doubled[len(base) :])
    return sum(ways[seen:]) / sum(ways), sum(ways[: seen + 1]) / sum(ways)


def shift_ratio(
    base: Sequence[float], new: Sequence[float], alpha: float = ALPHA
) -> tuple[float, float, float]:
    """Hodges-Lehmann ratio new / base: (low, estimate, high), the interval that the rank test at `alpha` inverts to.

    With too few sessions for `alpha` the interval is all that was seen.
    """
    ratios = sorted(y / x for x in base for y in new)
    ways = _rank_sums(tuple(range(len(base) + len(new))), len(new))
    least, allowed = len(new) * (len(new) - 1) // 2, alpha / 2 * sum(ways)
    rank = 1
    while 2 * (rank + 1) <= len(ratios) + 1 and sum(ways[least : least + rank + 1]) <= allowed:
        rank += 1
    return ratios[rank - 1], geometric_median(ratios), ratios[-rank]


@functools.lru_cache(maxsize=256)
def student_quantile(p: float, degrees: int) -> float:
    """The value that Student's t with so many degrees of freedom (4 or more) stays below with probability `p`; within
    2 % for p from 0.0002 to 0.9998 (Cornish and Fisher's expansion of the normal quantile)."""
    low, high = -9.0, 9.0
    for _ in range(60):
        z = (low + high) / 2
        low, high = (z, high) if math.erfc(-z / math.sqrt(2)) / 2 < p else (low, z)
    terms = (
        z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )  # fmt: skip
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


Atoms = Sequence[tuple[float, float]]  # a discrete distribution: (value, probability)


def binomial_tail(n: int, p: float, m: int) -> float:
    """P(X >= m) for X ~ Binomial(n, p)."""
    if m <= 0 or p >= 1.0:
        return 1.0
    if m > n or p <= 0.0:
        return 0.0
    if n > MOST_EXACT:
        return 0.5 * math.erfc((m - 0.5 - n * p) / math.sqrt(2 * n * p * (1 - p)))
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

    `x` is ascending and distinct; `cumulated[i]` is the probability of the first i of them. `y` has its own, `weights`.
    """

    x: tuple[float, ...]
    cumulated: tuple[float, ...]
    y: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> _Quotient:
        """The distributions of both medians, without negligible atoms, equal values as one."""
        x, y = _distinct(above), _distinct(below)
        return cls(
            tuple(value for value, _ in x),
            tuple(itertools.accumulate((p for _, p in x), initial=0.0)),
            tuple(value for value, _ in y),
            tuple(p for _, p in y),
        )

    def atoms(self, low: float, high: float) -> list[tuple[float, float]]:
        """The values above `low` and up to `high`, with their probabilities."""
        x, cumulated, right = self.x, self.cumulated, bisect.bisect_right
        return [
            (x[i] / value, q * (cumulated[i + 1] - cumulated[i]))
            for value, q in zip(self.y, self.weights, strict=True)
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
    low = min(one.x[0] / one.y[-1] for one in quotients) * (1 - 1e-9)
    high = max(one.x[-1] / one.y[0] for one in quotients) * (1 + 1e-9)
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
    for x, cumulated, y, weights in quotients:  # most of a report's time may go into this
        places = [right(x, ratio * value) for value in y]
        mass += sum(map(operator.mul, weights, map(cumulated.__getitem__, places)))
        rank += sum(places)
    return mass, rank


def _quantile_of(atoms: Atoms, mass: float) -> float:
    """The smallest value at which the cumulated probability reaches `mass`; atoms sorted by value."""
    cumulated = 0.0
    for value, probability in atoms:
        cumulated += probability
        if cumulated >= mass - 1e-12:
            return value
    return atoms[-1][0]
