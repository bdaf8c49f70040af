"""Statistics of timings: means of logarithms, intervals over sessions, noise measures, rank tests. Only the
standard library is used.

Every function is pure: equal values give equal results, in any order of the sessions. "Sessions" are lists of
block values, one list for each session. The repeated units are sessions and the blocks inside them. The samples
of one block share its conditions, so they never count as repetitions (docs/statistics.md). Intervals are 95 %
intervals.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple, Protocol

IntervalKind = Literal["sessions", "prior"]

MIN_SESSIONS = 5
ALPHA = 0.05
# sigma / MAD for normal noise.
MAD_SIGMA = 1.4826
# Up to this many draws, a binomial distribution is summed term by term. Beyond, the normal distribution is
# used.
MOST_EXACT = 256
# The largest half-width of an interval, in ln. A wider interval says nothing.
FARTHEST = 100.0


class Interval(NamedTuple):
    """An estimate with its interval, in the unit of the values."""

    low: float  # the low end, at most `estimate`; 0 if nothing is known
    estimate: float  # the estimate
    high: float  # the high end, at least `estimate`; infinity if nothing is known
    kind: IntervalKind  # "sessions", or "prior" if a prior is used because there are too few sessions

    def around(self, estimate: float) -> Interval:
        """Return an interval of the same relative width around another estimate."""
        factor = estimate / self.estimate
        return Interval(self.low * factor, estimate, self.high * factor, self.kind)


class IntervalLike(Protocol):
    """An estimate with its interval: an `Interval`, or a time in a document."""

    @property
    def low(self) -> float: ...
    @property
    def estimate(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def kind(self) -> IntervalKind: ...


class Spread(NamedTuple):
    """The location and spread of samples, in their unit."""

    minimum: float  # the smallest value
    q1: float  # first quartile
    q3: float  # third quartile
    mad: float  # median absolute deviation


def median(values: Iterable[float]) -> float:
    """Return the middle value, or the mean of the two middle values. Raises ValueError if there are
    no values."""
    return quantile(sorted(values), 0.5)


def geometric_median(values: Iterable[float]) -> float:
    """Return the middle value, or the geometric mean of the two middle ones, so that median(1/r) = 1/median(r).
    Raises ValueError if there are no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else math.sqrt(low) * math.sqrt(high)


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the q-quantile of ascending values, by linear interpolation between ranks (Hyndman-Fan type 7).
    Raises ValueError if there are no values."""
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
    """Return the median absolute deviation from the median, unscaled. Raises ValueError if there are
    no values."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def spread(values: Sequence[float]) -> Spread:
    """Return the location and spread of the values. Raises ValueError if there are no values."""
    ordered = sorted(values)
    q1, q3 = (quantile(ordered, q) for q in (0.25, 0.75))
    return Spread(ordered[0], q1, q3, mad(ordered))


# n normal values have on average (n - FEW_QUARTILES) / n of the interquartile range of many normal values.
FEW_QUARTILES = 1.15


def spread_share(values: Sequence[float]) -> float:
    """Return the interquartile range divided by the median, corrected for few values: the noise in one session.
    Returns 0 for a single value, or if the median is not positive. Raises ValueError if there are no values."""
    ordered, count = sorted(values), len(values)
    middle = quantile(ordered, 0.5)
    if middle <= 0 or count < 2:
        return 0.0
    return (quantile(ordered, 0.75) - quantile(ordered, 0.25)) / middle * count / (count - FEW_QUARTILES)


def order_correlation(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation between the values and their positions. Returns 0 for fewer than three
    values, or if all values are equal."""
    n = len(values)
    if n < 3:
        return 0.0
    # Ranks are halves, so their sums are exact. A report needs this of each case, so it has to be fast.
    ranks, squared_mean = _ranks(values), n * ((n - 1) / 2) ** 2
    covariance = sum(map(operator.mul, ranks, range(n))) - squared_mean
    variance = sum(map(operator.mul, ranks, ranks)) - squared_mean
    steps = n * (n * n - 1) / 12
    return covariance / math.sqrt(variance * steps) if variance > 0 else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks of the values, from 0, where equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, start = [0.0] * len(values), 0
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
    """Return the rank r of the median's interval [x_(r), x_(n+1-r)] of n values."""
    if n > MOST_EXACT:
        return math.floor((n + 1 - Z * math.sqrt(n)) / 2)
    # the largest r with P(Binomial(n, 1/2) < r) <= 2.5 %, at least 1
    rank, below = 1, 1
    while (below := below + math.comb(n, rank)) <= ALPHA / 2 * 2**n:
        rank += 1
    return rank


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the median's 95 % interval, by order statistics. At least one value is needed. Fewer
    than 6 values cover less than 95 %: the ends are then the smallest and the largest value."""
    ordered = sorted(values)
    rank = _median_rank(len(ordered))
    return ordered[rank - 1], ordered[-rank]


class Prior(NamedTuple):
    """The standard deviations of ln(time) that are expected before any measurement."""

    block: float  # the deviation between the blocks of a session
    session: float  # the deviation between sessions


# The deviations between blocks for launches below and above SHORT_S, from the files in results/
# (docs/statistics.md).
SHORT_S = 1e-3
SHORT_BLOCK, LONG_BLOCK = 0.15, 0.08
# The deviations between sessions: for cases that spend more than half of the time on launching, and for all
# others.
LAUNCH_SESSION, USUAL_SESSION = 0.10, 0.05
USUAL = Prior(LONG_BLOCK, USUAL_SESSION)


def prior_of(seconds: float, overhead_s: float = 0.0) -> Prior:
    """Return the prior for a launch of `seconds` on a device whose empty launch takes `overhead_s` seconds."""
    return Prior(
        SHORT_BLOCK if seconds < SHORT_S else LONG_BLOCK,
        LAUNCH_SESSION if seconds < 2 * overhead_s else USUAL_SESSION,
    )


def prior_quantile(p: float) -> float:
    """Return the `p`-quantile of Student's t with PRIOR_DEGREES degrees of freedom, for 0 < `p` < 1. The closed
    form for four degrees (Shaw 2006) is exact, in the tails too."""
    alpha = 4 * p * (1 - p)
    root = math.cos(math.acos(math.sqrt(alpha)) / 3) / math.sqrt(alpha)
    return math.copysign(2 * math.sqrt(root - 1), p - 0.5)


Z = 1.959964  # the 97.5 % quantile of the normal distribution


@functools.lru_cache(maxsize=256)
def student_quantile(p: float, degrees: int) -> float:
    """Return the `p`-quantile of Student's t with this number of `degrees` of freedom (Fisher and Cornish
    1960).

    From 4 degrees on, it is within 2.3 % for p from 0.0002 to 0.9998. The 97.5 % quantile is within 1 % from 2
    degrees on, and 11 % too small at 1.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )  # fmt: skip
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


# The degrees of freedom of a prior. With 4 of them and the mean variance s^2, the quantile of Student's
# distribution gives +-1.96 s before anything is measured.
PRIOR_DEGREES = 4


def squared_margin(squares: float, degrees: int, prior: float | None) -> float:
    """Return the square of the half-width of a value's 95 % interval, or infinity if nothing tells its
    variance. `squares` is a sum of squared deviations with `degrees` degrees of freedom. `prior` is the
    expected variance, or None."""
    if prior is not None:
        # the prior counts like PRIOR_DEGREES further degrees
        squares += prior * (PRIOR_DEGREES - 2)
        degrees += PRIOR_DEGREES
    return squares / degrees * student_quantile(1 - ALPHA / 2, degrees) ** 2 if degrees > 0 else math.inf


def squared_deviations(logs: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = math.fsum(logs) / len(logs)
    return math.fsum((value - mean) ** 2 for value in logs)


# If a block takes this many times as long as another one of the same case, another program had the CPU, so it
# says nothing about the call. Slow phases of a machine lengthen the times by less than that.
INTERRUPTED = 2.5


# A session that takes this many times as long as the median session was interrupted, too.
LATE_SESSION = 4.0


def clean_blocks(blocks: Sequence[float]) -> tuple[float, ...]:
    """Return the block times of one session without those above INTERRUPTED times the shortest one."""
    return tuple(value for value in blocks if value <= INTERRUPTED * min(blocks))


def clean_sessions(sessions: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the clean blocks of each session of a case. An interrupted session has none: its shortest block
    takes more than LATE_SESSION times the median of the sessions' shortest blocks."""
    shortest = [min(blocks) for blocks in sessions if blocks]
    latest = LATE_SESSION * median(shortest) if shortest else 0.0
    return [clean_blocks(blocks) if blocks and min(blocks) <= latest else () for blocks in sessions]


def mean_log(values: Iterable[float]) -> float:
    """Return the mean natural logarithm of at least one value. Raises ValueError for a value that is
    not positive."""
    logs = [math.log(value) for value in values]
    return math.fsum(logs) / len(logs)


def run_value(sessions: Iterable[Sequence[float]]) -> float:
    """Return the time of a case: the geometric mean over the sessions of their blocks' geometric means. There
    is at least one session, and each has a block."""
    means = [mean_log(blocks) for blocks in sessions]
    return math.exp(math.fsum(means) / len(means))


def _block_margin(blocks: Sequence[float], prior: Prior | None) -> float:
    """Return the squared half-width of the interval around the mean of ln(block) in one session."""
    expected = None if prior is None else prior.block**2
    squares = squared_deviations([math.log(value) for value in blocks])
    return squared_margin(squares, len(blocks) - 1, expected) / len(blocks)


def _interval(means: Sequence[float], margins: Sequence[float], between: float | None) -> Interval:
    """Return exp(mean of `means`) with its interval. `margins` are the squared half-widths of the
    sessions' `means`."""
    count = len(means)
    estimate = math.exp(math.fsum(means) / count)
    # From MIN_SESSIONS sessions on, only the observed variance counts, and no longer `between`.
    kind: IntervalKind = "sessions" if count >= MIN_SESSIONS else "prior"
    expected = None
    if kind == "prior" and between is not None:
        expected = between + math.fsum(margins) / count / Z**2
    if count == 1 and between is None:
        squared = margins[0]
    else:
        squared = squared_margin(squared_deviations(means), count - 1, expected) / count
    # Without any knowledge, the interval is infinite. Otherwise its ends are finite, so callers may divide by them.
    factor = math.exp(min(math.sqrt(squared), FARTHEST)) if squared < math.inf else math.inf
    return Interval(estimate / factor, estimate, estimate * factor, kind)


def run_interval(sessions: Sequence[Sequence[float]], prior: Prior | None = USUAL) -> Interval:
    """Return the time of a case (`run_value`) with its interval, by Student's t over the sessions' means of
    ln(block). With fewer than 5 sessions, `prior` adds to the observed variance. Without a prior, the interval
    of a single block is infinite."""
    margins = [_block_margin(blocks, prior) for blocks in sessions]
    return _interval(list(map(mean_log, sessions)), margins, None if prior is None else prior.session**2)


def ratio_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    priors: tuple[Prior, Prior] | None = (USUAL, USUAL),
) -> Interval:
    """Return the baseline's time divided by the case's time, with an interval as in `run_interval`. `pairs`
    holds (blocks of the baseline, blocks of the case) for each session, and `priors` holds (prior of the
    baseline, prior of the case)."""
    means = [mean_log(base) - mean_log(case) for base, case in pairs]
    sides = (None, None) if priors is None else priors
    margins = [math.fsum(map(_block_margin, pair, sides)) for pair in pairs]
    between = None if priors is None else math.fsum(prior.session**2 for prior in priors)
    return _interval(means, margins, between)


def quotient(above: IntervalLike, below: IntervalLike) -> Interval:
    """Return the ratio `above` / `below` of two independent times, with its interval."""
    estimate = above.estimate / below.estimate
    down = math.hypot(_log_ratio(above.estimate, above.low), _log_ratio(below.high, below.estimate))
    up = math.hypot(_log_ratio(above.high, above.estimate), _log_ratio(below.estimate, below.low))
    low, high = (estimate * math.exp(min(max(end, -FARTHEST), FARTHEST)) for end in (-down, up))
    return Interval(low, estimate, high, weaker(above.kind, below.kind))


def _log_ratio(high: float, low: float) -> float:
    return math.log(high / low) if low > 0 else FARTHEST


def weaker(a: IntervalKind, b: IntervalKind) -> IntervalKind:
    """Return the kind of an interval that combines intervals of the kinds `a` and `b`."""
    return "sessions" if a == b == "sessions" else "prior"


def geometric_mean(values: Sequence[float]) -> float:
    """Return exp of the mean logarithm, or 0 if a value is 0. Raises ValueError if there are no values or one
    is negative."""
    if not values:
        raise ValueError("no values")
    return 0.0 if min(values) == 0 else math.exp(mean_log(values))


@functools.lru_cache(maxsize=64)
def _rank_sums(ranks: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Return, for each sum from 0 on, the number of ways to choose k of these ranks with that sum."""
    size = len(ranks) // 8 + 1  # bytes of a count
    # One large integer holds the counts of all sums: a shift and an addition update them all.
    ways = [1] + [0] * k
    for i, rank in enumerate(ranks):
        # At most all ranks so far are chosen, and at least k minus the number of ranks that follow.
        for taken in range(min(k, i + 1), max(0, k - len(ranks) + i), -1):
            ways[taken] += ways[taken - 1] << (8 * size * rank)
    counts = ways[k].to_bytes(size * (sum(ranks) + 1), "little")
    return tuple(int.from_bytes(counts[at : at + size], "little") for at in range(0, len(counts), size))


def rank_test(base: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Return two p-values of the exact one-sided Mann-Whitney test. The first is small if `new` is larger than
    `base`, the second if `new` is smaller. Equal values share the mean of their ranks."""
    ranks = _ranks([*base, *new])
    times = 1 if all(map(float.is_integer, ranks)) else 2  # a shared rank may be a multiple of 1/2
    whole = [round(times * rank) for rank in ranks]
    ways = _rank_sums(tuple(sorted(whole)), len(new))
    seen = sum(whole[len(base) :])
    return sum(ways[seen:]) / sum(ways), sum(ways[: seen + 1]) / sum(ways)


def shift_ratio(
    base: Sequence[float], new: Sequence[float], alpha: float = ALPHA
) -> tuple[float, float, float]:
    """Return (low, estimate, high) of the Hodges-Lehmann ratio new / base: the median of the ratios of all
    pairs. Its interval inverts the two-sided rank test at level `alpha`. With too few values for `alpha`, the
    interval spans all ratios."""
    ratios = sorted(y / x for x in base for y in new)
    ways = _rank_sums(tuple(range(len(base) + len(new))), len(new))
    least, allowed = len(new) * (len(new) - 1) // 2, alpha / 2 * sum(ways)
    rank = max(1, sum(count <= allowed for count in itertools.accumulate(ways[least:])))
    return ratios[rank - 1], geometric_median(ratios), ratios[-rank]


# A rate that falls short of its peers' median by less than this share is never a suspect.
TOLERANCE = 0.05
FEWEST_PEERS = 4  # the fewest peers whose scatter tells a suspect
_LEAST_K = 3.5
_CHANCE = 0.05  # the probability of a false suspect in a fleet whose GPUs differ by chance
_MOST_SUSPECTS, _MOST_SHARE = 4, 0.01


def growing_k(looks: int) -> float:
    """Return by how many robust standard deviations a suspect must fall short of its peers, in a fleet with
    `looks` comparisons. Chance alone then names a suspect in at most one fleet of twenty."""
    return max(_LEAST_K, NormalDist().inv_cdf(1 - _CHANCE / max(looks, 1)))


def robust_spread(rates: Sequence[float]) -> float:
    """Return the robust standard deviation (from the MAD) divided by the median. Raises ValueError if there are
    no rates."""
    return MAD_SIGMA * mad(rates) / median(rates)


def is_uniform(suspects: int, peers: int) -> bool:
    """Tell whether few enough of the `peers` are suspects for the suspects to be named."""
    # otherwise the peers are not alike, and it is unclear which of them are slow
    return suspects <= max(_MOST_SUSPECTS, _MOST_SHARE * peers)
