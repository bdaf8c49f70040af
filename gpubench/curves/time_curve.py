"""The time of one contender over the size, with its uncertainty: points, and Gaussian processes over x =
ln(size).

A process describes the belief about ln(seconds) before or after some points are known. Its method `place`
prepares an x, and its methods `mean` and `covariances` take prepared places. Each place is prepared once and
used with many others, which saves time.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import add, mul
from typing import Any, Literal, NamedTuple, Protocol

from gpubench.curves.stats import clean_sessions, squared_deviations
from gpubench.result.case import IN_PLACE, copies

Vector = Sequence[float]
# The smallest pivot. If two sizes are so close that rounding would decide, they count as one.
LEAST_PIVOT = 1e-12


def dot(a: Vector, b: Vector) -> float:
    """Return the dot product, over the length of the shorter vector."""
    return sum(map(mul, a, b), 0.0)


def cholesky(matrix: Sequence[Vector]) -> list[list[float]]:
    """Return the lower triangular L with L L' = `matrix`. Row i of L has i + 1 entries. Only the lower half of
    `matrix` is read."""
    rows: list[list[float]] = []
    for i, values in enumerate(matrix):
        entries: list[float] = []
        for j in range(i):
            entries.append((values[j] - dot(entries, rows[j])) / rows[j][j])
        entries.append(math.sqrt(max(values[i] - dot(entries, entries), LEAST_PIVOT)))
        rows.append(entries)
    return rows


def solve_lower(lower: Sequence[Vector], right: Vector) -> list[float]:
    """Return the x that solves L x = `right` for the lower triangular L."""
    x: list[float] = []
    for entries, value in zip(lower, right, strict=True):
        x.append((value - dot(x, entries)) / entries[len(x)])
    return x


class Process(Protocol):
    """A belief about a curve. Its methods `mean` and `covariances` take what its `place` returns."""

    def place(self, x: float) -> Any:
        """Prepare x = ln(size) for `mean` and `covariances`."""

    def mean(self, place: Any) -> float:
        """Return the expected ln(seconds) at a prepared place."""

    def covariances(self, place: Any, others: Sequence[Any]) -> list[float]:
        """Return the covariances between ln(seconds) at `place` and ln(seconds) at each of `others`."""


# Between two sizes further apart than this factor, the shape of a curve is unknown.
WIDEST = math.log(20)
# A rise in a gap is a step if its square exceeds this many times the variance that chance explains.
SURE_STEP = 7.0


class Warp(NamedTuple):
    """The variance that a random walk gains up to each place."""

    knots: tuple[float, ...]  # the x at which the variance is given
    heights: tuple[float, ...]  # the variance at each knot; linear between and beyond the knots

    @classmethod
    def even(cls, low: float, rate: float) -> Warp:
        """Return a warp whose variance grows by `rate` for each unit of x, from 0 at `low`."""
        return cls((low, low + 1), (0.0, rate))

    @classmethod
    def with_steps(cls, points: Sequence[Point], rate: float) -> Warp:
        """Return a warp that grows by `rate` for each unit of x, and by the squared `step` between
        neighbouring points."""
        heights = [0.0]
        for i, (a, b) in enumerate(itertools.pairwise(points)):
            # a step may lie anywhere between the points
            heights.append(heights[-1] + rate * (b.x - a.x) + step(points, i) ** 2)
        return cls(tuple(point.x for point in points), tuple(heights))

    def at(self, x: float) -> float:
        """Return the variance that a walk has gained from the first knot to x, at least 0."""
        i = min(max(bisect_right(self.knots, x), 1), len(self.knots) - 1)
        (a, b), (low, high) = self.knots[i - 1 : i + 1], self.heights[i - 1 : i + 1]
        return max(low + (high - low) * (x - a) / (b - a), 0.0)


def step(points: Sequence[Point], i: int, sure: float = SURE_STEP) -> float:
    """Return the step of ln(seconds) between point `i` and the next point: the change beyond what the slopes on
    both sides explain. Returns 0 if chance, an outlier, the slopes or a wide gap may explain the change. Chance
    may explain it if its square is at most `sure` times the variance."""
    low, high = points[i : i + 2]
    # over a wide gap, the slopes beside it tell nothing
    if high.x - low.x > WIDEST:
        return 0.0
    excess, chance = _excess(points, i)
    if excess**2 <= sure * chance or (excess < 0 and low.y <= high.y):
        return 0.0
    # An outlier looks like a step on each of its sides, so only the surest of neighbouring steps counts.
    for j in (i - 1, i + 1):
        if 0 <= j < len(points) - 1 and points[j + 1].x - points[j].x <= LEVEL:
            beside, its_chance = _excess(points, j)
            if beside**2 / its_chance > excess**2 / chance:
                return 0.0
    return excess


def _excess(points: Sequence[Point], i: int) -> tuple[float, float]:
    """Return the rise over the gap after point `i`, less what the slope beside it explains, and the variance
    of this difference."""
    low, high = points[i : i + 2]
    gap = high.x - low.x
    before = [point for point in points[max(0, i - 2) : i + 1] if low.x - point.x <= LEVEL]
    after = [point for point in points[i + 1 : i + 4] if point.x - high.x <= LEVEL]
    below = next((p for p in reversed(points[:i]) if low.x - p.x >= REACH), None)
    above = next((p for p in points[i + 2 :] if p.x - high.x >= REACH), None)
    pairs = [(p, q) for p, q in ((below, low), (high, above)) if p and q]
    slopes = [(q.y - p.y) / (q.x - p.x) for p, q in pairs]
    slope = sum(slopes) / len(slopes) if slopes else STEEP
    (low_level, low_chance), (high_level, high_chance) = (
        (sum(p.y - slope * p.x for p in side) / len(side), sum(p.variance for p in side) / len(side) ** 2)
        for side in (before, after)
    )
    excess = high_level - low_level
    chance = low_chance + high_chance
    chance += sum((gap / (q.x - p.x) / len(slopes)) ** 2 * (p.variance + q.variance) for p, q in pairs)
    # at an end of the curve, the slope is taken to be at least STEEP
    if len(slopes) < 2:
        excess = max(0.0, excess - max(0.0, STEEP - slope) * gap)
    return excess, chance


# The slope beside a gap is taken over at least this much of ln(n): over less, noise decides it.
REACH = math.log(1.8)
# Up to three points within this distance are averaged into one level.
LEVEL = math.log(1.5)


# At an end of a curve, a time that rises faster than this power of n counts as a step.
STEEP = 1.2


class Walk:
    """A process: a straight line of unknown level and slope, plus random walks of its height and of its slope.

    `mean` is the expected ln(seconds), the same at each x. `level` and `slope` are the standard deviations of
    the line's level at x = `low` and of its slope. `warp` is the variance of the height's walk, and `bend` the
    variance that the slope gains for each unit of x.
    """

    def __init__(self, low: float, mean: float, *, level: float, slope: float, warp: Warp, bend: float) -> None:
        self._low, self._mean, self._warp, self._bend = low, mean, warp, bend
        self._level, self._slope = level**2, slope**2

    def place(self, x: float) -> tuple[float, float]:
        return x - self._low, self._warp.at(x)

    def mean(self, place: tuple[float, float]) -> float:
        return self._mean

    def covariances(self, place: tuple[float, float], others: Sequence[tuple[float, float]]) -> list[float]:
        u, s = place
        level, slope, bend = self._level, self._slope * u, self._bend
        values = []
        for v, t in others:
            near, far = (u, v) if u < v else (v, u)
            bent = bend * near * near * (3 * far - near) / 6
            values.append(level + slope * v + (s if s < t else t) + bent)
        return values


class LaunchTime:
    """A process around the curve ln(a + b n): a device takes a = `fixed_s` to start and b = `per_n_s` for each
    unit of n.

    `fixed` and `per_n` are the relative standard deviations of a and b, and `walk` is added. With `power` p,
    the curve is ln((a^p + (b n)^p)^(1/p)).
    """

    def __init__(
        self, fixed_s: float, per_n_s: float, *, fixed: float, per_n: float, walk: Walk, power: float = 1.0
    ) -> None:
        self._fixed_s, self._per_n_s, self._power = fixed_s, per_n_s, power
        self._fixed, self._per_n, self._walk = fixed**2, per_n**2, walk

    def place(self, x: float) -> tuple[float, float, tuple[float, float]]:
        ratio = (self._per_n_s * math.exp(x) / self._fixed_s) ** self._power
        height = math.log(self._fixed_s) + math.log1p(ratio) / self._power
        return height, ratio / (1 + ratio), self._walk.place(x)

    def mean(self, place: tuple[float, float, Any]) -> float:
        return place[0]

    def covariances(
        self, place: tuple[float, float, Any], others: Sequence[tuple[float, float, Any]]
    ) -> list[float]:
        fixed, per_n = self._fixed * (1 - place[1]), self._per_n * place[1]
        walked = self._walk.covariances(place[2], [walk for _, _, walk in others])
        return [fixed * (1 - v) + per_n * v + walk for (_, v, _), walk in zip(others, walked, strict=True)]


class Deviating:
    """A process: `common`, plus the deviation of the independent process `own` from its mean."""

    def __init__(self, common: Process, own: Process) -> None:
        self._common, self._own = common, own

    def place(self, x: float) -> tuple[Any, Any]:
        return self._common.place(x), self._own.place(x)

    def mean(self, place: tuple[Any, Any]) -> float:
        return self._common.mean(place[0])

    def covariances(self, place: tuple[Any, Any], others: Sequence[tuple[Any, Any]]) -> list[float]:
        commons = self._common.covariances(place[0], [common for common, _ in others])
        return list(map(add, commons, self._own.covariances(place[1], [own for _, own in others])))


class Conditioned:
    """The process `prior` after some points are known. `likelihood` is the logarithm of the points' density
    before they are known, up to a constant. `misfit` is the points' squared Mahalanobis distance from `prior`."""

    def __init__(self, prior: Process, points: Sequence[Point]) -> None:
        self.prior = prior
        self._places = [prior.place(point.x) for point in points]
        matrix = []
        for i, (place, point) in enumerate(zip(self._places, points, strict=True)):
            values = prior.covariances(place, self._places[: i + 1])
            values[i] += point.variance
            matrix.append(values)
        self._lower = cholesky(matrix)
        rest = [point.y - prior.mean(place) for place, point in zip(self._places, points, strict=True)]
        self._whitened = solve_lower(self._lower, rest)
        self.misfit = dot(self._whitened, self._whitened)
        self.likelihood = -self.misfit / 2 - sum(math.log(entries[-1]) for entries in self._lower)

    def place(self, x: float) -> tuple[Any, list[float]]:
        place = self.prior.place(x)
        return place, solve_lower(self._lower, self.prior.covariances(place, self._places))

    def mean(self, place: tuple[Any, list[float]]) -> float:
        return self.prior.mean(place[0]) + dot(place[1], self._whitened)

    def covariances(
        self, place: tuple[Any, list[float]], others: Sequence[tuple[Any, list[float]]]
    ) -> list[float]:
        before = self.prior.covariances(place[0], [other for other, _ in others])
        return [value - dot(place[1], solved) for value, (_, solved) in zip(before, others, strict=True)]

    def at(self, x: float) -> tuple[float, float]:
        """Return the mean and the variance of ln(seconds) at x."""
        place = self.place(x)
        return self.mean(place), max(0.0, *self.covariances(place, [place]))


Kind = Literal["cpu", "waited", "queued", "copied"]
Blocks = Mapping[int, Sequence[Sequence[float]]]  # size -> sessions -> seconds of each block


class Scatter(NamedTuple):
    """The expected standard deviations of ln(seconds), by the length of the call."""

    short: float  # for calls below 50 us
    middle: float  # for calls below 1 ms
    long: float  # for calls from 1 ms on

    def of(self, log_seconds: float) -> float:
        """Return the standard deviation for a call that takes exp(`log_seconds`) seconds."""
        return self.short if log_seconds < LOG_SHORT else self.middle if log_seconds < LOG_LONG else self.long


LOG_SHORT, LOG_LONG = math.log(50e-6), math.log(1e-3)
# The scatter between the blocks of one case in one session.
BLOCK: Mapping[Kind, Scatter] = {
    "cpu": Scatter(0.15, 0.20, 0.15), "copied": Scatter(0.15, 0.09, 0.09), "queued": Scatter(0.12, 0.05, 0.03),
    "waited": Scatter(0.09, 0.09, 0.03),
}  # fmt: skip
# The scatter of a case around its curve, within a session: the place and alignment of its memory, and the effect
# of its size on caches.
CASE: Mapping[Kind, Scatter] = {
    "cpu": Scatter(0.11, 0.18, 0.11), "copied": Scatter(0.13, 0.077, 0.077), "queued": Scatter(0.07, 0.05, 0.02),
    "waited": Scatter(0.055, 0.055, 0.03),
}  # fmt: skip
# The standard deviation by which a whole curve shifts from one session to the next.
OFFSET: Mapping[Kind, float] = {"cpu": 0.055, "waited": 0.055, "queued": 0.06, "copied": 0.06}
# The expected scatter has the weight of this many measured blocks.
PRIOR_DEGREES = 4
# Blocks that lie further apart than this many expected deviations count as if they lay this far apart.
FARTHEST = 2.5


class Point(NamedTuple):
    """One timed size of a curve."""

    x: float  # ln n
    y: float  # the mean of ln(seconds)
    variance: float  # the variance of y


def kind_of(device_kind: str, regime: str) -> Kind:
    """Return the kind of the curve for calls in the regime with this id. Calls on a CPU are `cpu`, those that
    copy or compute in place are `copied`, and the others are `queued` or `waited`."""
    if device_kind == "cpu":
        return "cpu"
    if copies(regime) or regime.startswith(IN_PLACE):
        return "copied"
    return "queued" if regime == "resident-queued" else "waited"


def points(kind: Kind, blocks: Blocks) -> list[Point]:
    """Return one point for each size that has an uninterrupted block, by ascending size."""
    result = list[Point]()
    for n in sorted(blocks):
        sessions = [session for session in _log_sessions(blocks[n]) if session]
        if sessions:
            result.append(_point(kind, n, sessions))
    return result


def _log_sessions(sessions: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return ln(seconds) of the uninterrupted blocks of each session."""
    return [[math.log(value) for value in session] for session in clean_sessions(sessions)]


def _point(kind: Kind, n: int, sessions: Sequence[Sequence[float]]) -> Point:
    y = statistics.fmean(map(statistics.fmean, sessions))
    expected = BLOCK[kind].of(y)
    squares = sum(map(squared_deviations, sessions))
    degrees = sum(len(session) - 1 for session in sessions)
    seen = min(squares, degrees * (FARTHEST * expected) ** 2)
    block = (PRIOR_DEGREES * expected**2 + seen) / (PRIOR_DEGREES + degrees)
    per_session = statistics.fmean(1 / len(session) for session in sessions)
    return Point(math.log(n), y, (CASE[kind].of(y) ** 2 + block * per_session) / len(sessions))


def offset_variance(kind: Kind, blocks: Blocks) -> float:
    """Return the variance by which a whole curve may be shifted in another run. It combines an expected
    variance with the distances between sessions, over the sizes that all sessions measured."""
    apart: dict[int, list[float]] = {}
    count = max((len(sessions) for sessions in blocks.values()), default=1)
    for sessions in blocks.values():
        logs = _log_sessions(sessions)
        if len(logs) == count and all(logs):
            means = [statistics.fmean(session) for session in logs]
            middle = statistics.fmean(means)
            for i, mean in enumerate(means):
                apart.setdefault(i, []).append(mean - middle)
    expected = OFFSET[kind] ** 2
    squares = sum(statistics.fmean(values) ** 2 for values in apart.values()) if count > 1 else 0.0
    return (PRIOR_DEGREES * expected + squares) / (PRIOR_DEGREES + count - 1) / count


# Between two points that lie further apart than this factor, the curve is computed at intermediate places, too.
STEP = math.log(1.6)


# A measured time also corrects the curve at sizes within this factor of the measured size.
NEAR = math.log(1.1)
# In a gap of at most NARROW, a false step costs little: it widens an interval at most to the ends of the gap. So
# a smaller rise counts as a step there.
NARROW, SURE_NARROW_STEP = math.log(1.6), 0.7


class Height(NamedTuple):
    """The belief about ln(seconds) at one size."""

    mean: float  # the expected ln(seconds); linear between the ends of a gap
    variance: float  # the variance of ln(seconds)
    jump: float = 0.0  # the height of the step in the gap around the size; 0: there is none
    # the probability that the step lies below the size: the share of the gap that lies below the size
    share: float = 0.0
    gap: tuple[float, float] = (0.0, 0.0)  # the ends of the gap, as ln(n)

    def branches(self) -> list[tuple[float, float]]:
        """Return two pairs (probability, mean): one if the step lies below the size, one if it lies above.
        Without a step, return one pair."""
        if not self.jump:
            return [(1.0, self.mean)]
        before = self.mean - self.share * self.jump
        return [(self.share, before + self.jump), (1 - self.share, before)]


class TimeCurve:
    """The curve of ln(seconds) over ln(n) of one contender, between the smallest and the largest timed size.
    `belief` is its process over x = ln(n) + `shift`. `offset` is the variance of the whole curve's shift in
    another run."""

    def __init__(
        self, belief: Conditioned, points: Sequence[Point], offset: float, *, kind: Kind, shift: float = 0.0,
    ) -> None:  # fmt: skip
        self._belief, self._shift = belief, shift
        self.points, self.offset, self.kind = tuple(points), offset, kind

    @cached_property
    def _grid(self) -> tuple[list[float], list[float], list[float]]:
        """The places at which the curve is computed, with the means and the variances there."""
        places = [self.first]
        for point in self.points[1:]:
            start = places[-1]
            steps = max(1, math.ceil((point.x - start) / STEP - 1e-9))
            places += [start + (point.x - start) * i / steps for i in range(1, steps + 1)]
        heights = [self._belief.at(x + self._shift) for x in places]
        return places, [mean for mean, _ in heights], [variance for _, variance in heights]

    @cached_property
    def _steps(self) -> list[float]:
        """The step in each gap between two points, 0 on a GPU."""
        if self.kind != "cpu":
            return [0.0] * (len(self.points) - 1)
        return [
            step(self.points, i, SURE_NARROW_STEP if b.x - a.x <= NARROW else SURE_STEP)
            for i, (a, b) in enumerate(itertools.pairwise(self.points))
        ]

    @property
    def first(self) -> float:
        """ln of the smallest timed size."""
        return self.points[0].x

    @property
    def last(self) -> float:
        """ln of the largest timed size."""
        return self.points[-1].x

    def knows(self, x: float) -> bool:
        """Tell whether the shape of the curve is known around x, from timed sizes close by or, on a GPU,
        from relatives."""
        if not self.first - 1e-9 <= x <= self.last + 1e-9:
            return False
        i = bisect_right(self.points, (x - 1e-9,))
        around = self.points[max(i - 1, 0) : i + 1]
        # On a CPU, relatives tell nothing about a gap, because each op outgrows the caches at another size.
        close = around[-1].x - around[0].x <= WIDEST or min(abs(point.x - x) for point in around) <= STEP
        return close or (self.kind != "cpu" and isinstance(self._belief.prior, Deviating))

    def mean(self, x: float) -> float:
        """Return the mean of `at(x)`. Beyond the timed sizes, return the mean at the nearest end."""
        grid, means, _ = self._grid
        i = bisect_right(grid, x)
        if i == 0 or i == len(grid):
            return means[max(i - 1, 0)]
        return means[i - 1] + (means[i] - means[i - 1]) * (x - grid[i - 1]) / (grid[i] - grid[i - 1])

    def pull(self, x: float) -> float:
        """Return how far the times measured within NEAR of x lie above `mean`, interpolated at x. At a timed
        size, `mean` plus this value is the measured ln(seconds)."""
        i = bisect_right(self.points, (x,))
        around = self.points[max(i - 1, 0) : i + 1]
        reach = min(NEAR, around[-1].x - around[0].x or NEAR)
        pull = 0.0
        for point in around:
            share = 1 - abs(x - point.x) / reach
            if share > 0:
                pull += share * (point.y - self.mean(point.x))
        return pull

    def case_variance(self, x: float) -> float:
        """Return the variance of ln(seconds) of a single size around the curve, within a run."""
        return CASE[self.kind].of(self.mean(x)) ** 2

    def at(self, x: float) -> Height:
        """Return the belief about ln(seconds) at x = ln(n), without `offset`. Raises ValueError outside the
        timed sizes."""
        grid, means, variances = self._grid
        if not grid[0] - 1e-9 <= x <= grid[-1] + 1e-9:
            raise ValueError("a curve says nothing beyond the sizes that were timed")
        if len(grid) == 1:
            return Height(means[0], variances[0])
        i = min(max(bisect_right(grid, x), 1), len(grid) - 1)
        share = (x - grid[i - 1]) / (grid[i] - grid[i - 1])
        mean, variance = (values[i - 1] + (values[i] - values[i - 1]) * share for values in (means, variances))
        return self._with_step(x, mean, variance)

    def _with_step(self, x: float, mean: float, variance: float) -> Height:
        i = min(max(bisect_right(self.points, (x, math.inf)), 1), len(self.points) - 1)
        low, high, jump = self.points[i - 1], self.points[i], self._steps[i - 1]
        if not jump:
            return Height(mean, variance)
        share = min(max((x - low.x) / (high.x - low.x), 0.0), 1.0)
        variance = max(variance - jump**2 * share * (1 - share), min(low.variance, high.variance))
        return Height(mean, variance, jump, share, (low.x, high.x))
