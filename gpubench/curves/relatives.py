"""The fit of the curves of one run. Contenders of one device whose ops move the same bytes for each element are
relatives: their curves share a common part."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import msgspec

from gpubench.curves.time_curve import (
    Blocks,
    Conditioned,
    Deviating,
    Kind,
    LaunchTime,
    Point,
    Process,
    TimeCurve,
    Walk,
    Warp,
    dot,
    kind_of,
    offset_variance,
    points,
)


class TimedSizes(msgspec.Struct, frozen=True, dict=True):
    """The times of one contender: one op by one implementation on one device in one situation."""

    kind: Kind  # the kind of its calls
    blocks: Blocks  # the seconds of its blocks, by size and session
    # equal for contenders that are relatives, so it does not contain the op; None: no contender is a relative
    relation: Hashable = None
    # the bytes that a launch moves for each unit of n; 0 if they are not proportional to n, so that the
    # contender has no relatives
    traffic: float = 0.0

    @classmethod
    def of(
        cls,
        device_kind: str,
        relation: tuple[str, str, str, str],
        blocks: Blocks,
        moved: Mapping[int, tuple[int, int]],
    ) -> TimedSizes:
        """Return the times of a contender. `relation` is (dtype, device, implementation, regime id). `moved`
        maps each size to (bytes that a launch moves, bytes that it writes). If `moved` is empty, the contender
        has no relatives."""
        # An op that writes next to nothing is a reduction. Reductions are related only to each other.
        reduces = all(written < (SAME_TRAFFIC - 1) * total for total, written in moved.values())
        traffic = traffic_of({n: total for n, (total, _) in moved.items()})
        return cls(kind_of(device_kind, relation[-1]), blocks, (*relation, reduces), traffic)

    @cached_property
    def points(self) -> list[Point]:
        """The points of the curve, by ascending size."""
        return points(self.kind, self.blocks)


class WalkRates(NamedTuple):
    """How much variance a random walk gains for each unit of ln(n)."""

    height: float  # the variance of the walk's height
    bend: float  # the variance of the walk's slope


# Of nine pairs of rates, this one makes the times of eleven runs the most likely (docs/statistics.md).
LINE = WalkRates(0.01, 0.05)
LAUNCH: Mapping[Kind, WalkRates] = {
    "cpu": LINE, "waited": WalkRates(0.0001, 0.0), "queued": WalkRates(0.003, 0.0),
    "copied": WalkRates(0.03, 0.01),
}  # fmt: skip
# The exponent p with which the launch cost and the work overlap (see `LaunchTime`). In a row of launches, a call
# takes little more than the longer of the two.
OVERLAP: Mapping[Kind, float] = {"queued": 3.0}


class Own(NamedTuple):
    """How far the curve of one op may deviate from the curve of its relatives."""

    level: float  # the standard deviation of its level, or on a GPU of its launch cost, as a share
    slope: float  # the standard deviation of its slope, or on a GPU of its cost per byte, as a share
    share: float = 1.0  # the variance of its random walk / the variance of the relatives' random walk


# The deviations that are tried in turn. The points of the op decide which of them is used.
OWN: Mapping[Kind, tuple[Own, ...]] = {
    "cpu": (Own(0.05, 0.02, 0.05), Own(0.30, 0.05, 0.15)),
    "waited": (Own(0.02, 0.03, 0.5), Own(0.10, 0.20, 0.5)), "queued": (Own(0.03, 0.05, 0.5), Own(0.10, 0.20, 0.5)),
    "copied": (Own(0.03, 0.05, 0.5), Own(0.10, 0.20, 0.5)),
}  # fmt: skip
# The deviations of a contender without relatives: nearly everything is possible.
ALONE_LINE = Own(3.0, 1.5)
ALONE_LAUNCH = Own(0.5, 0.7)
# Points of relatives within this factor of the size are merged into one.
BIN = math.log(1.4)
# The expected scatter counts as much as USUAL_DEGREES points. The scatter of the points changes it at most by the
# factor MOST_MISFIT.
USUAL_DEGREES, MOST_MISFIT = 8, 4.0

# The bytes for each element may differ by this factor between sizes, because a reduction also writes a few
# bytes.
SAME_TRAFFIC = 1.02

K = TypeVar("K", bound=Hashable)


def traffic_of(bytes_by_size: Mapping[int, int]) -> float:
    """Return the bytes that a launch moves for each unit of n. Returns 0 if this ratio differs by more than
    SAME_TRAFFIC between the sizes, or if there are no sizes."""
    per_unit = [moved / n for n, moved in bytes_by_size.items()]
    shares = bool(per_unit) and max(per_unit) <= SAME_TRAFFIC * min(per_unit)
    return statistics.fmean(per_unit) if shares else 0.0


def fit(series: Mapping[K, TimedSizes], only: Callable[[K], bool] = lambda key: True) -> dict[K, TimeCurve]:
    """Fit the curve of each contender that has a time. `only` selects the keys whose curves are returned. The
    others still serve as relatives."""
    related: dict[Hashable, list[K]] = {}
    for key, item in series.items():
        if item.traffic > 0 and item.relation is not None:
            # On a CPU, the bytes decide at which size the caches overflow, so only equal traffic has an equal shape.
            shape = item.traffic if item.kind == "cpu" else None
            related.setdefault((item.relation, item.kind, shape), []).append(key)
    members = {key: [other for other in keys if other != key] for keys in related.values() for key in keys}
    curves: dict[K, TimeCurve] = {}
    for key in filter(only, series):
        item, places = series[key], series[key].points
        if not places:
            continue
        shift = math.log(item.traffic) if item.traffic > 0 else 0.0
        relatives = [
            [_shift(point, math.log(series[other].traffic)) for point in series[other].points]
            for other in members.get(key, ())
            if series[other].points
        ]
        belief = _belief(item.kind, [_shift(point, shift) for point in places], relatives)
        offset = offset_variance(item.kind, item.blocks)
        curves[key] = TimeCurve(belief, places, offset, kind=item.kind, shift=shift)
    return curves


def _shift(point: Point, shift: float) -> Point:
    return point._replace(x=point.x + shift)


def _belief(kind: Kind, places: Sequence[Point], relatives: Sequence[Sequence[Point]]) -> Conditioned:
    """Return the candidate curve that makes the points of a contender most likely."""
    # The line fits a CPU. It also fits GPU ops such as matmul, whose time is no sum of a launch cost and a
    # cost per byte.
    result = [_line(places)]
    if relatives and (kind == "cpu" or len(places) > 1):
        result += _beside(kind, places, relatives)
    if kind != "cpu" and len(places) > 2:  # two points always lie on some curve of a launch
        cost = fixed_and_per_n(kind, places)
        result.append(_ease(_launch_process(kind, places[0].x, *cost, ALONE_LAUNCH), places, 2))
    return max(result, key=lambda belief: belief.likelihood)


def _line(places: Sequence[Point], low: float | None = None) -> Conditioned:
    """Fit a random walk to the points alone, from x = `low` or the first point."""
    scaled = _scale(places, *_unevenness(places))
    steps = len(places) > 2
    warp = Warp.with_steps(scaled, LINE.height) if steps else Warp.even(places[0].x, LINE.height)
    walk = Walk(
        places[0].x if low is None else low, statistics.fmean(point.y for point in places),
        level=ALONE_LINE.level, slope=ALONE_LINE.slope, warp=warp, bend=LINE.bend,
    )  # fmt: skip
    return Conditioned(walk, scaled)


def _scale(places: Sequence[Point], misfit: float, degrees: int) -> list[Point]:
    """Scale the points' variances by how far their chi-squared `misfit` of `degrees` of freedom is
    from expected."""
    factor = (USUAL_DEGREES + misfit) / (USUAL_DEGREES + degrees)
    factor = min(max(factor, 1 / MOST_MISFIT), MOST_MISFIT)
    return [point._replace(variance=point.variance * factor) for point in places]


def _unevenness(places: Sequence[Point]) -> tuple[float, int]:
    """Return the misfit between the points and the lines through their neighbours, and its degrees
    of freedom."""
    shares = []
    for a, b, c in zip(places, places[1:], places[2:], strict=False):
        weight = (b.x - a.x) / (c.x - a.x)
        off = b.y - (1 - weight) * a.y - weight * c.y
        expected = b.variance + (1 - weight) ** 2 * a.variance + weight**2 * c.variance
        expected += LINE.height * (b.x - a.x) * (c.x - b.x) / (c.x - a.x)
        shares.append(off**2 / expected)
    # the median, so that a single step has no effect
    return (statistics.median(shares) / MEDIAN_SQUARE * len(shares) if shares else 0.0), len(shares)


MEDIAN_SQUARE = 0.455  # the median of the square of a standard normal value


def _beside(kind: Kind, places: Sequence[Point], relatives: Sequence[Sequence[Point]]) -> list[Conditioned]:
    """Return candidate curves: the relatives' common curve plus a deviation, one for each entry of OWN."""
    result = []
    # The common curve is a mean of few relatives, so an op may lie further from it than from the true one.
    apart = math.sqrt(1 + 1 / len(relatives))
    for own in OWN[kind]:
        knots = _bin(relatives, own)
        if len(knots) < (2 if kind == "cpu" else 3):
            continue
        low = min(knots[0].x, places[0].x)
        further = Own(own.level * apart, own.slope * apart, own.share)
        if kind == "cpu":
            alone = Walk(
                low, 0.0, level=further.level, slope=further.slope, warp=Warp.even(low, LINE.height * own.share),
                bend=LINE.bend * own.share,
            )  # fmt: skip
            result.append(Conditioned(Deviating(_line(knots, low), alone), places))
        else:
            cost = fixed_and_per_n(kind, knots)
            common = Conditioned(_launch_process(kind, low, *cost, ALONE_LAUNCH), knots)
            result.append(_ease(Deviating(common, _launch_process(kind, low, *cost, further)), places, 0))
    return result


def _bin(relatives: Sequence[Sequence[Point]], own: Own) -> list[Point]:
    """Merge the points of all relatives that lie close together."""
    every = sorted(point for places in relatives for point in places)
    bins: list[list[Point]] = []
    for point in every:
        if bins and point.x - bins[-1][0].x < BIN:
            bins[-1].append(point)
        else:
            bins.append([point])
    return [_together(near, own.level) for near in bins]


def _together(near: Sequence[Point], level: float) -> Point:
    """Return the weighted mean of close points of curves that deviate by the standard deviation `level`."""
    weights = [1 / (point.variance + level**2) for point in near]
    total = sum(weights)
    x, y = (dot(weights, values) / total for values in ([p.x for p in near], [p.y for p in near]))
    return Point(x, y, 1 / total)


def _launch_process(kind: Kind, low: float, fixed_s: float, per_n_s: float, own: Own) -> LaunchTime:
    rates = LAUNCH[kind]
    walk = Walk(
        low,
        0.0,
        level=0.0,
        slope=0.0,
        warp=Warp.even(low, rates.height * own.share),
        bend=rates.bend * own.share,
    )
    power = OVERLAP.get(kind, 1.0)
    return LaunchTime(fixed_s, per_n_s, fixed=own.level, per_n=own.slope, walk=walk, power=power)


def _ease(prior: Process, places: Sequence[Point], free: int) -> Conditioned:
    """Return `prior` after the points are known, with their variances scaled to their misfit. The fit
    of `prior` used `free` degrees of freedom."""
    misfit = Conditioned(prior, places).misfit
    return Conditioned(prior, _scale(places, misfit, max(0, len(places) - free)))


def fixed_and_per_n(kind: Kind, places: Sequence[Point]) -> tuple[float, float]:
    """Fit the curve of `LaunchTime` to the points, whose n is exp(x). Return (a, b) in seconds: the cost of a
    launch, and the cost for each unit of n."""
    power = OVERLAP.get(kind, 1.0)
    weights = [1 / point.variance for point in places]
    units = [math.exp(power * point.x) for point in places]
    total = sum(weights)

    def misfit(log_ratio: float) -> tuple[float, float]:
        """Return the weighted sum of squares for b / a = exp(`log_ratio`), and the best ln(a)."""
        ratio = math.exp(power * log_ratio)
        rest = [point.y - math.log1p(ratio * unit) / power for point, unit in zip(places, units, strict=True)]
        log_a = dot(rest, weights) / total
        return dot(weights, [(value - log_a) ** 2 for value in rest]), log_a

    low, high = math.log(1e-14), math.log(1.0)
    best = 0.0
    # a grid of ln(b / a), refined twice
    for steps in (28, 12, 12):
        width = (high - low) / steps
        best = min((low + width * i for i in range(steps + 1)), key=lambda log_ratio: misfit(log_ratio)[0])
        low, high = best - width, best + width
    fixed_s = math.exp(misfit(best)[1])
    return fixed_s, fixed_s * math.exp(best)
