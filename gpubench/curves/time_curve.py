"""The time of one contender over the size, with its uncertainty."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from gpubench.curves.process import CASE, WIDEST, Conditioned, Deviating, Kind, Point, step

# Between two points that lie further apart than this factor the curve is looked at in so many steps.
STEP = math.log(1.6)


# A call of nearly the same size takes nearly the time that was measured: within this factor.
NEAR = math.log(1.1)
# In a gap no wider than NARROW a step that is none costs little, so one is suspected sooner: an interval that the step
# widens ends with the gap.
NARROW, SURE_NARROW_STEP = math.log(1.6), 0.7


class Height(NamedTuple):
    """ln(seconds) at one size."""

    mean: float  # within a gap it goes straight from one end to the other
    variance: float  # of the mean
    jump: float = 0.0  # the step that the gap holds
    share: float = 0.0  # of the gap that lies below the size: the probability that the step does
    gap: tuple[float, float] = (0.0, 0.0)  # its ends

    def branches(self) -> list[tuple[float, float]]:
        """(probability, mean) of the curve behind and before its step; one pair where there is none."""
        if not self.jump:
            return [(1.0, self.mean)]
        before = self.mean - self.share * self.jump
        return [(self.share, before + self.jump), (1 - self.share, before)]


class TimeCurve:
    """ln(seconds) over ln(n) between the smallest and the largest size that was timed, never beyond.

    `offset`: the variance by which another run would shift the whole curve.
    """

    def __init__(
        self, belief: Conditioned, points: Sequence[Point], offset: float, *, kind: Kind, shift: float = 0.0,
    ) -> None:  # fmt: skip
        self._belief, self._shift = belief, shift
        self.points = tuple(points)
        self.offset = offset
        self.kind = kind
        self._grid: list[tuple[float, float, float]] | None = None
        self._x: list[float] = []
        self._means: list[float] = []

    @property
    def first(self) -> float:
        """ln of the smallest size."""
        return self.points[0].x

    @property
    def last(self) -> float:
        """ln of the largest size."""
        return self.points[-1].x

    def knows(self, x: float) -> bool:
        """Whether sizes that lie close enough to each other were timed on both sides of x, or relatives tell the shape
        between them: of launches and bytes, not of a CPU, which leaves its caches at its own sizes."""
        if not self.first - 1e-9 <= x <= self.last + 1e-9:
            return False
        i = bisect_right(self.points, (x - 1e-9,))
        around = self.points[max(i - 1, 0) : i + 1]
        close = around[-1].x - around[0].x <= WIDEST or min(abs(point.x - x) for point in around) <= STEP
        return close or (self.kind != "cpu" and isinstance(self._belief.prior, Deviating))

    def mean(self, x: float) -> float:
        """The mean of `at`, where every microsecond counts; at its ends beyond them."""
        if self._grid is None:
            self._prepare()
        grid, means = self._x, self._means
        i = bisect_right(grid, x)
        if i == 0 or i == len(grid):
            return means[max(i - 1, 0)]
        return means[i - 1] + (means[i] - means[i - 1]) * (x - grid[i - 1]) / (grid[i] - grid[i - 1])

    def pull(self, x: float) -> float:
        """Return how far ln(seconds) at x lies off `mean` because of sizes timed within NEAR.

        At one of these it is the time measured there; between two near ones it goes from the one to the other.
        """
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
        """The variance by which a single size lies off the curve in a run."""
        return CASE[self.kind].of(self.mean(x)) ** 2

    def at(self, x: float) -> Height:
        """ln(seconds) at x = ln(n), without `offset`. Raises ValueError outside.

        It is computed at the points and at a few places between them, and goes straight between those.
        """
        grid = self._grid if self._grid is not None else self._prepare()
        if not grid[0][0] - 1e-9 <= x <= grid[-1][0] + 1e-9:
            raise ValueError("a curve says nothing beyond the sizes that were timed")
        if len(grid) == 1:
            return Height(*grid[0][1:])
        i = min(max(bisect_right(grid, (x, math.inf)), 1), len(grid) - 1)
        (a, low, low_variance), (b, high, high_variance) = grid[i - 1], grid[i]
        share = (x - a) / (b - a)
        mean, variance = low + (high - low) * share, low_variance + (high_variance - low_variance) * share
        return self._with_step(x, mean, variance)

    def _with_step(self, x: float, mean: float, variance: float) -> Height:
        i = min(max(bisect_right(self._places, x), 1), len(self._places) - 1)
        jump = self._steps[i - 1]
        if not jump:
            return Height(mean, variance)
        share = min(max((x - self._places[i - 1]) / (self._places[i] - self._places[i - 1]), 0.0), 1.0)
        least = min(self.points[i - 1].variance, self.points[i].variance)
        variance = max(variance - jump**2 * share * (1 - share), least)
        return Height(mean, variance, jump, share, (self._places[i - 1], self._places[i]))

    def _step(self, i: int) -> float:
        narrow = self.points[i + 1].x - self.points[i].x <= NARROW
        return step(self.points, i, SURE_NARROW_STEP) if narrow else step(self.points, i)

    def _prepare(self) -> list[tuple[float, float, float]]:
        places = [self.first]
        for point in self.points[1:]:
            steps = max(1, math.ceil((point.x - places[-1]) / STEP - 1e-9))
            start = places[-1]
            places += [start + (point.x - start) * i / steps for i in range(1, steps + 1)]
        self._grid = [(x, *self._belief.at(x + self._shift)) for x in places]
        self._places = [point.x for point in self.points]
        self._x, self._means = [x for x, _, _ in self._grid], [mean for _, mean, _ in self._grid]
        gaps = range(len(self.points) - 1) if self.kind == "cpu" else ()
        self._steps = [self._step(i) for i in gaps] or [0.0] * (len(self.points) - 1)
        return self._grid
