"""Break-even from timings: where to look closely, and the crossing with its interval (measurement.md, section 10).

Pure functions, standard library only. The ratio is baseline seconds / case seconds: above 1 the case wins. Timings
that chose where to look must not enter the estimate: they were selected for lying near 1 (evidence E5).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpubench import stats

Sides = tuple[Sequence[float], Sequence[float]]  # seconds of the baseline and of the case, in one session
Timings = Mapping[int, Mapping[int, Sides]]  # size -> session -> both sides

RESAMPLES = 400
WINDOW_SIZES = 7
STANDARD_ERRORS = 5.0
NARROWEST_WINDOW = math.log(1.12)  # half-widths in ln n
WIDEST_WINDOW = math.log(2)
NARROWEST = 0.01  # an interval is never narrower than +-1 %
LOCAL = 4.0  # the slope at a crossing is read from the sizes within this factor of it
# The spread of a few timings may be 0 by chance: no size may count more than this many times the middle one.
MOST_WEIGHT = 4.0
# Standard error of a median / that of a mean, and sigma / MAD, both for normal noise.
MEDIAN_COST = math.sqrt(math.pi / 2)
MAD_SIGMA = 1.4826
FARTHEST = 100.0  # |ln n| of a root that no memory holds: an open end


class Crossing(NamedTuple):
    """The size at which the fitted ratio is 1, with its 95 % interval; an end that the timings leave open is None."""

    n: float
    low: float | None
    high: float | None


def bracket(ratios: Mapping[int, float]) -> tuple[int, int] | None:
    """(largest size at which the case loses, next measured size); None without a loss or without a size above.

    By the middle ratios, sure or not: a bracket between sure sizes is wide where noise is, its centre lies off the
    crossing, and a line fitted around it is bent (simulated: intervals then hold a crossing near a knee in 37 to 87 %).
    """
    low = max((n for n, ratio in ratios.items() if ratio < 1), default=None)
    above = [n for n in ratios if low is not None and n > low]
    return (low, min(above)) if low is not None and above else None


def window(
    timings: Mapping[int, Sides], low: int, high: int, fresh: int,
    *, granule: int = 1, least: int = 1, most: int | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """Up to 7 sizes, evenly spaced in ln n around the bracket [low, high], for `fresh` timings of either side.

    `timings` are those of the search, by size: their slope, and the error that their noise leaves after the
    fresh timings, give the width. A wider window bends the line, a narrower one leaves its slope unknown.
    Sizes are multiples of `granule` inside [`least`, `most`].
    """
    centre = (math.log(low) + math.log(high)) / 2
    local = {
        n: sides
        for n, sides in timings.items()
        if n in (low, high) or abs(math.log(n) - centre) <= math.log(LOCAL)
    }
    slope = 0.0
    if len(local) > 1:
        _, slope = stats.fit_line([math.log(n) for n in local], [_log_ratio(sides) for sides in local.values()])
    error = math.sqrt(math.fsum(_noise(sides) for sides in local.values()) / max(len(local) * fresh, 1))
    half = STANDARD_ERRORS * error / slope if slope > 0 else WIDEST_WINDOW
    half = min(max(half, (math.log(high) - math.log(low)) / 2, NARROWEST_WINDOW), WIDEST_WINDOW)
    start = max(centre - half, math.log(least))
    end = centre + half if most is None else min(centre + half, math.log(most))
    steps = (math.exp(start + (end - start) * i / (WINDOW_SIZES - 1)) for i in range(WINDOW_SIZES))
    return tuple(sorted({_rounded(n, granule, least, most) for n in steps}))


def crossing(timings: Timings, *, seed: int, resamples: int = RESAMPLES) -> Crossing | None:
    """Root of the weighted straight line of ln(ratio) on ln n, with its bootstrap interval.

    The bootstrap draws sessions from 5 on, then samples; below 5 sessions samples alone, and the interval does
    not foresee another session. Draws without a rising line leave both ends open: more than 2.5 % of them make
    an end None. None if the line through all timings does not rise, or with fewer than two sizes. The same seed
    gives the same interval, whatever the order and the unit of the timings and the numbers of the sessions.
    """
    timings = _renumbered(timings)
    sizes = sorted(n for n in timings if timings[n])
    if len(sizes) < 2:
        return None
    x = [math.log(n) for n in sizes]
    weights = _weights([timings[n] for n in sizes])
    ratios = [stats.median([_log_ratio(sides) for sides in timings[n].values()]) for n in sizes]
    root = stats.line_root(x, ratios, weights)
    if root is None or abs(root) > FARTHEST:
        return None
    draws = _Draws([timings[n] for n in sizes], random.Random(seed), resamples)
    roots = [_resampled_root(x, values, weights) for values in draws.log_ratios()]
    low, high = _ends(roots)
    n = math.exp(root)
    return Crossing(
        n,
        None if low is None else min(math.exp(low), n * (1 - NARROWEST)),
        None if high is None else max(math.exp(high), n * (1 + NARROWEST)),
    )


def _renumbered(timings: Timings) -> Timings:
    """The same timings, the sessions numbered by what they measured: the draws must not depend on their names."""
    seen: dict[int, list[tuple[int, float, float]]] = {}
    for n in sorted(timings):
        for session, (base, case) in timings[n].items():
            seen.setdefault(session, []).append((n, stats.median(base), stats.median(case)))
    numbers = {session: number for number, session in enumerate(sorted(seen, key=seen.__getitem__))}
    return {
        n: {numbers[session]: sides for session, sides in by_session.items()}
        for n, by_session in timings.items()
    }


class _Draws:
    """Bootstrap draws of ln(ratio) at each size.

    The median of a resample is drawn from its exact distribution, which costs one number in place of sorting n.
    """

    def __init__(self, sizes: Sequence[Mapping[int, Sides]], draw: random.Random, resamples: int) -> None:
        self._sizes, self._draw = sizes, draw
        sessions = sorted({session for by_session in sizes for session in by_session})
        again = len(sessions) >= stats.MIN_BOOTSTRAP_SESSIONS
        self._chosen = [
            draw.choices(sessions, k=len(sessions)) if again else sessions for _ in range(resamples)
        ]

    def log_ratios(self) -> Iterable[list[float | None]]:
        """One list for each resample: ln(ratio) by size, None where no drawn session measured that size."""
        columns = [self._column(by_session) for by_session in self._sizes]
        return (list(row) for row in zip(*columns, strict=True))

    def _column(self, by_session: Mapping[int, Sides]) -> list[float | None]:
        times = dict.fromkeys(by_session, 0)
        for chosen in self._chosen:
            for session in chosen:
                if session in times:
                    times[session] += 1
        pools = {
            session: iter(self._ratios(by_session[session], times[session])) for session in sorted(by_session)
        }
        rows = ([next(pools[session]) for session in chosen if session in pools] for chosen in self._chosen)
        return [stats.median(row) if row else None for row in rows]

    def _ratios(self, sides: Sides, count: int) -> list[float]:
        base, case = (self._medians(samples, count) for samples in sides)
        return [math.log(a / b) for a, b in zip(base, case, strict=True)]

    def _medians(self, samples: Sequence[float], count: int) -> list[float]:
        values, probabilities = zip(*stats.median_distribution(samples), strict=True)
        return self._draw.choices(values, probabilities, k=count)


def _resampled_root(
    x: Sequence[float], values: Sequence[float | None], weights: Sequence[float]
) -> float | None:
    known = [(a, value, w) for a, value, w in zip(x, values, weights, strict=True) if value is not None]
    if len(known) < 2:
        return None
    root = stats.line_root(*zip(*known, strict=True))
    return root if root is not None and abs(root) <= FARTHEST else None


def _ends(roots: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The 2.5 % and 97.5 % quantiles; a draw without a root lies beyond both."""
    known = sorted(root for root in roots if root is not None)
    tail = math.floor(len(roots) * stats.ALPHA / 2)
    rank = tail - (len(roots) - len(known))
    return (known[rank], known[-1 - rank]) if 0 <= rank < len(known) else (None, None)


def _weights(sizes: Sequence[Mapping[int, Sides]]) -> list[float]:
    """1 / variance of ln(ratio), no size above MOST_WEIGHT times the middle one."""
    variances = [
        sum(_variance(sides) for sides in by_session.values()) / len(by_session) ** 2 for by_session in sizes
    ]
    floor = stats.median(variances) / MOST_WEIGHT
    return [1 / max(variance, floor) for variance in variances] if floor > 0 else [1.0] * len(variances)


def _log_ratio(sides: Sides) -> float:
    return math.log(stats.median(sides[0]) / stats.median(sides[1]))


def _noise(sides: Sides) -> float:
    """Squared standard error of ln(ratio) of the medians of one timing a side, outliers left aside."""
    return sum(_median_variance(samples) for samples in sides)


def _variance(sides: Sides) -> float:
    """Squared standard error of ln(ratio) of the medians."""
    return sum(_median_variance(samples) / len(samples) for samples in sides)


def _median_variance(samples: Sequence[float]) -> float:
    few = len(samples) / (len(samples) - 0.8)  # the MAD of few samples is too small (Croux and Rousseeuw 1992)
    return (MEDIAN_COST * MAD_SIGMA * few * stats.mad([math.log(value) for value in samples])) ** 2


def _rounded(n: float, granule: int, least: int, most: int | None) -> int:
    step = granule if n >= 2 * granule else 1
    rounded = max(round(n / step) * step, least)
    return rounded if most is None else min(rounded, most)
