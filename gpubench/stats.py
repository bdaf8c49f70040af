"""Statistics of timings: medians, intervals over sessions, noise measures, fits. Standard library only.

Every function is pure: the same answer for the same samples, whatever the order of sessions. "Sessions" are lists
of samples, one list per session; the session is the unit of replication (measurement.md, section 6). Intervals are
95 % intervals.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gpubench.bootstrap import ALPHA as ALPHA
from gpubench.bootstrap import binomial_tail as binomial_tail
from gpubench.bootstrap import cluster_bootstrap, ratio_bootstrap
from gpubench.bootstrap import median_distribution as median_distribution

IntervalKind = Literal["bootstrap", "within-session"]

MIN_BOOTSTRAP_SESSIONS = 5


class Interval(NamedTuple):
    """`low <= estimate <= high`, in the unit of the samples. `kind` says what the interval may be used for.

    "within-session" describes what was seen; it does not foresee another session.
    """

    low: float
    estimate: float
    high: float
    kind: IntervalKind


class Spread(NamedTuple):
    """Where the samples lie, all in the unit of the samples, and how many are outliers by Tukey's fences."""

    minimum: float
    q1: float
    median: float
    q3: float
    p95: float
    mad: float
    mild_outliers: int
    far_outliers: int


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
    """Quartiles, 95th percentile, MAD and Tukey's outlier counts (1.5 and 3 IQR beyond the quartiles)."""
    ordered = sorted(values)
    q1, middle, q3 = (quantile(ordered, q) for q in (0.25, 0.5, 0.75))
    beyond = [max(q1 - value, value - q3) for value in ordered]
    far = sum(1 for excess in beyond if excess > 3 * (q3 - q1))
    mild = sum(1 for excess in beyond if excess > 1.5 * (q3 - q1)) - far
    return Spread(ordered[0], q1, middle, q3, quantile(ordered, 0.95), mad(ordered), mild, far)


def iqr_share(values: Sequence[float]) -> float:
    """Interquartile range / median: the noise of one session."""
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    return (quantile(ordered, 0.75) - quantile(ordered, 0.25)) / middle if middle > 0 else 0.0


def first_sample_z(values: Sequence[float]) -> float:
    """Modified z-score of the first value: 0.6745 (x - median) / MAD (Iglewicz and Hoaglin 1993)."""
    deviation = values[0] - median(values)
    scale = mad(values)
    if scale > 0:
        return 0.6745 * deviation / scale
    return math.copysign(math.inf, deviation) if deviation else 0.0


def order_correlation(values: Sequence[float]) -> float:
    """Spearman's rank correlation of the values against their order; 0 when it is undefined."""
    if len(values) < 3:
        return 0.0
    ranks = _ranks(values)
    centre = (len(values) - 1) / 2
    covariance = sum((rank - centre) * (i - centre) for i, rank in enumerate(ranks))
    variance = sum((rank - centre) ** 2 for rank in ranks)
    steps = sum((i - centre) ** 2 for i in range(len(values)))
    return covariance / math.sqrt(variance * steps) if variance > 0 else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
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


def run_interval(sessions: Sequence[Sequence[float]]) -> Interval:
    """Run value = median of the session medians, with its interval: exact cluster bootstrap from 5 sessions on,
    below that the hull of the sessions' order-statistic intervals."""
    estimate = median([median(samples) for samples in sessions])
    if len(sessions) >= MIN_BOOTSTRAP_SESSIONS:
        low, high = cluster_bootstrap([median_distribution(samples) for samples in sessions])
        return _around(low, estimate, high, "bootstrap")
    ends = [median_interval(samples) for samples in sessions]
    return _around(min(end[0] for end in ends), estimate, max(end[1] for end in ends), "within-session")


def ratio_interval(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Median over sessions of median(baseline) / median(case), with its interval (measurement.md, section 9).

    `pairs` holds (baseline samples, case samples) of each session that measured both.
    """
    estimate = geometric_median([median(base) / median(case) for base, case in pairs])
    if len(pairs) >= MIN_BOOTSTRAP_SESSIONS:
        low, high = ratio_bootstrap(pairs)
        return _around(low, estimate, high, "bootstrap")
    ends = [(median_interval(base), median_interval(case)) for base, case in pairs]
    low = min(base[0] / case[1] for base, case in ends)
    high = max(base[1] / case[0] for base, case in ends)
    return _around(low, estimate, high, "within-session")


def _around(low: float, estimate: float, high: float, kind: IntervalKind) -> Interval:
    return Interval(min(low, estimate), estimate, max(high, estimate), kind)


def fit_line(
    x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Weighted least-squares line: (intercept, slope). Raises ValueError unless x takes two values."""
    w = weights or [1.0] * len(x)
    total = math.fsum(w)
    mean_x = math.fsum(a * b for a, b in zip(w, x, strict=True)) / total
    mean_y = math.fsum(a * b for a, b in zip(w, y, strict=True)) / total
    variance = math.fsum(a * (b - mean_x) ** 2 for a, b in zip(w, x, strict=True))
    if variance <= 0:
        raise ValueError("a line needs two different x")
    slope = math.fsum(a * (b - mean_x) * (c - mean_y) for a, b, c in zip(w, x, y, strict=True)) / variance
    return mean_y - slope * mean_x, slope


def line_root(x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None = None) -> float | None:
    """Where the fitted line crosses zero while rising; None if it does not rise."""
    intercept, slope = fit_line(x, y, weights)
    return -intercept / slope if slope > 0 else None


def last_crossing(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Where the curve of straight pieces through the points, in ascending x, last passes through zero, either way.

    None if it does not. A point on zero counts as above it.
    """
    found = None
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(x, y, strict=True)):
        if (y0 < 0) != (y1 < 0):
            found = x0 + (x1 - x0) * -y0 / (y1 - y0)
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm. Raises ValueError on no values."""
    if not values:
        raise ValueError("no values")
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


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """p adjusted for the false discovery rate over the family, in the order given (Benjamini and Hochberg 1995)."""
    adjusted, least = [0.0] * len(p), 1.0
    order = sorted(range(len(p)), key=p.__getitem__, reverse=True)
    for place, index in enumerate(order):
        least = min(least, p[index] * len(p) / (len(p) - place))
        adjusted[index] = least
    return adjusted
